"""Server-sent events of the OpenAI API: split a byte stream into events, and see which events carry a token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DONE = b"[DONE]"


class EventSplitter:
    """Cut a byte stream, as it arrives in pieces, into whole events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that this piece completes, each with its final blank line."""
        self._rest += piece
        while (end := self._rest.find(b"\n\n")) >= 0:
            event, self._rest = self._rest[: end + 2], self._rest[end + 2 :]
            yield event


def event_data(event: bytes) -> bytes | None:
    """Return the payload of an event, None for a comment or keep-alive."""
    for line in event.splitlines():
        if line.startswith(b"data:"):
            return line[5:].strip()
    return None


def event_json(event: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an event; None for ``[DONE]`` and whatever is not one."""
    data = event_data(event)
    if data is None or data == DONE:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def count_tokens(chunk: dict[str, Any]) -> int:
    """Return how many tokens a streamed chunk shows: exact with token ids in it, else 1 for text and 0 for none.

    A chat stream opens with a chunk that only names the role: no token.
    """
    total = 0
    for choice in chunk.get("choices") or ():
        ids = choice.get("token_ids")
        if ids is not None:
            total += len(ids)
        elif "delta" in choice:
            delta = choice["delta"] or {}
            shown = ("content", "reasoning", "reasoning_content", "tool_calls")
            total += 1 if any(delta.get(name) for name in shown) else 0
        else:
            # vLLM sends no completion chunk without a token before the first; text may be half a character, so empty.
            total += 1 if choice.get("text") or choice.get("finish_reason") is None else 0
    return total


def carries_token(event: bytes) -> bool:
    """Return whether an event shows at least one token."""
    chunk = event_json(event)
    return chunk is not None and count_tokens(chunk) > 0

"""One request as the client sees it: send, time every token, keep the result as one record of client.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession

from instrumented_connectors.clock import Clock
from instrumented_connectors.identity import parse_traceparent

from .sse import EventSplitter, count_tokens, event_json

SCHEMA = 1
"""Version of a client.jsonl record. 1: first release."""


@dataclass
class Measurement:
    """What was measured of one request; times are Unix ns of the client's anchored clock."""

    request_id: str
    mode: str
    prompt_tokens: int
    max_tokens: int
    traceparent: str | None = None
    send_ns: int = 0
    end_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    has_ids: bool = True
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the record for client.jsonl."""
        first = self.token_ns[0] if self.token_ns else None
        parent = parse_traceparent(self.traceparent)
        return {
            "schema": SCHEMA,
            "request_id": self.request_id,
            "trace_id": f"{parent[0]:032x}" if parent else None,
            "mode": self.mode,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "send_unix_ns": self.send_ns,
            "first_byte_unix_ns": first,
            "token_unix_ns": self.token_ns,
            "end_unix_ns": self.end_ns,
            "status": "error" if self.error else "ok",
            "error": self.error,
            "ttft_ms": (first - self.send_ns) / 1e6 if first is not None else None,
            "tokens": self.tokens if self.has_ids and self.tokens else None,
            **self.extra,
        }


async def measure(session: ClientSession, url: str, body: bytes, result: Measurement, clock: Clock) -> None:
    """Send one request and fill in its measurement; errors are part of the result, never raised."""
    headers = {"Content-Type": "application/json", "X-Request-Id": result.request_id, **result.headers}
    if result.traceparent:
        headers["traceparent"] = result.traceparent
    splitter = EventSplitter()
    result.send_ns = clock.wall_ns()
    headers["X-Request-Start"] = f"t={result.send_ns / 1000:.3f}"
    try:
        async with session.post(url, data=body, headers=headers) as answer:
            if answer.status != 200:
                result.error = f"HTTP {answer.status}: {(await answer.text())[:500]}"
            elif answer.content_type == "text/event-stream":
                async for piece in answer.content.iter_any():
                    now = clock.wall_ns()
                    for event in splitter.feed(piece):
                        take_chunk(result, event_json(event), now)
            else:
                content = await answer.json()
                take_chunk(result, content, clock.wall_ns())
    except (ClientError, OSError, ValueError, TimeoutError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.end_ns = clock.wall_ns()
    if result.error is None and not result.token_ns:
        result.error = "no token in the answer"


def take_chunk(result: Measurement, chunk: dict[str, Any] | None, now_ns: int) -> None:
    """Add the tokens of a streamed chunk, or of a whole answer, that arrived at `now_ns`."""
    if chunk is None:
        return
    if "error" in chunk:
        result.error = str(chunk["error"])[:500]
        return
    for choice in chunk.get("choices") or ():
        # With n > 1 the figures are those of the first sequence.
        if choice.get("index", 0) != 0:
            continue
        count = count_tokens({"choices": [choice]})
        ids = choice.get("token_ids")
        if ids is None and count:
            result.has_ids = False
        result.tokens.extend(ids or ())
        result.token_ns.extend([now_ns] * count)

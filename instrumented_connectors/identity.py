"""Who a span belongs to: trace ids, span ids and the request key that P, D and the router share.

vLLM drops ``traceparent`` unless its own OTLP endpoint is set, so the fallback is derived: the client-visible request
id (``X-Request-Id``), recovered from vLLM's internal id, hashes to the same trace id everywhere, without a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

# `input_processor.assign_request_id` appends `-<8 hex>`; off with VLLM_DISABLE_REQUEST_ID_RANDOMIZATION.
_RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$", re.IGNORECASE)
# `n > 1` children are `<index>_<parent id>`; completions are `cmpl-<X>-<prompt index>`; chat is `chatcmpl-<X>`.
_COMPLETION = re.compile(r"^(?:\d+_)?cmpl-(?P<key>.+)-\d+$", re.DOTALL)
_CHAT = re.compile(r"^(?:\d+_)?chatcmpl-(?P<key>.+)$", re.DOTALL)
_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")

TraceParent = tuple[int, int, int]
"""trace id (128 bit), parent span id (64 bit), trace flags (8 bit)."""


def base_id(request_id: str) -> str:
    """Return vLLM's internal request id without its random suffix: what pairs the two legs of a push."""
    return _RANDOM_SUFFIX.sub("", request_id)


def request_key(request_id: str) -> str:
    """Return the client-visible id inside vLLM's internal request id (the id itself when it has another form)."""
    base = base_id(request_id)
    match = _COMPLETION.match(base) or _CHAT.match(base)
    return _repair_header(match["key"] if match else base)


def _repair_header(text: str) -> str:
    """Undo the Latin-1 reading of a UTF-8 header: HTTP servers read header bytes as Latin-1, routers often as UTF-8."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def derive_trace_id(key: str) -> int:
    """Return the 128-bit trace id that every process derives from a request key."""
    return _digest(16, "trace", key)


def derive_span_id(*parts: object) -> int:
    """Return the 64-bit span id of a span that more than one process must be able to name."""
    return _digest(8, "span", *parts)


def parse_traceparent(value: object) -> tuple[int, int] | None:
    """Return (trace id, parent span id) of a W3C ``traceparent`` header, or None when it is not a valid one."""
    parsed = parse_trace_context(value)
    return parsed[:2] if parsed else None


def parse_trace_context(value: object) -> TraceParent | None:
    """Return (trace id, parent span id, flags) of a W3C ``traceparent``, or None when it is not a valid one."""
    if not isinstance(value, str):
        return None
    match = _TRACEPARENT.match(value.strip().lower())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return (trace_id, span_id, int(match[4], 16)) if trace_id and span_id else None


def request_trace_context(
    headers: Mapping[str, str] | None, transfer_params: Mapping[str, Any] | None
) -> TraceParent | None:
    """Return the trace context that reached the engine: vLLM's trace headers first, then the transfer parameters."""
    if headers:
        for name, value in headers.items():
            if name.lower() == "traceparent":
                return parse_trace_context(value)
    if transfer_params:
        return parse_trace_context(transfer_params.get("traceparent"))
    return None


def _digest(size: int, *parts: object) -> int:
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    # Zero is "invalid" in W3C trace context.
    return int.from_bytes(blake2b(text, digest_size=size, person=b"kvlens").digest(), "big") or 1

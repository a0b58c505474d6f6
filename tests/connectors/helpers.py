"""Injected clock, ids and a sink that keeps spans as plain dicts."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from instrumented_connectors.catalogue import PREFIX
from instrumented_connectors.clock import Clock
from instrumented_connectors.decisions import DecisionSpans
from instrumented_connectors.leases import LeaseLedger
from instrumented_connectors.metrics.facts import Cause, FactBook
from instrumented_connectors.request_spans import RequestEmitter
from instrumented_connectors.scheduler_spans import SchedulerSpans
from instrumented_connectors.spans import SpanFactory
from instrumented_connectors.traces import TraceBook
from instrumented_connectors.transfer_spans import TransferSpans

MS = 1_000_000
ANCHOR = 1_000_000 * MS


class Sink:
    """Keeps finished spans; times are milliseconds since the clock's anchor."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def on_end(self, span: ReadableSpan) -> None:
        assert span.start_time is not None
        assert span.end_time is not None
        attributes = {key.removeprefix(PREFIX): value for key, value in (span.attributes or {}).items()}
        for common in ("request_id", "request_key"):
            attributes.pop(common, None)
        context = span.get_span_context()
        assert context is not None
        self.spans.append(
            {
                "name": span.name,
                "start": (span.start_time - ANCHOR) / MS,
                "end": (span.end_time - ANCHOR) / MS,
                "trace": context.trace_id,
                "span": context.span_id,
                "parent": span.parent.span_id if span.parent else None,
                "error": not span.status.is_unset,
                "links": [(link.context.trace_id, link.context.span_id) for link in span.links],
                **attributes,
            }
        )

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def phases(self) -> list[tuple[str, float, float]]:
        return [(span["name"], span["start"], span["end"]) for span in self.spans]


def make_clock() -> Clock:
    """A clock whose monotonic zero is ANCHOR in Unix time."""
    return Clock(perf_ns=lambda: 0, unix_ns=lambda: ANCHOR, boot_id="boot")


def make_factory(sink: Sink, engine_id: str) -> SpanFactory:
    return SpanFactory(sink, Resource({}), make_clock(), engine_id)


def make_scheduler(sink: Sink, engine_id: str, *, follows_peer: bool = True, limit: int = 100) -> SchedulerSpans:
    return build_scheduler(make_factory(sink, engine_id), limit=limit, follows_peer=follows_peer)


def build_scheduler(
    factory: SpanFactory, *, traces: TraceBook | None = None, causes: dict[str, Cause] | None = None, limit: int = 100,
    mode: str = "pull", follows_peer: bool = True, facts: FactBook | None = None,
) -> SchedulerSpans:  # fmt: skip
    """The scheduler's builder with what it works with, as the runtime puts them together."""
    traces = traces or TraceBook(100)
    emitter = RequestEmitter(factory, traces)
    return SchedulerSpans(
        factory, traces, limit, leases=LeaseLedger(emitter, traces, {} if causes is None else causes, limit, facts),
        decisions=DecisionSpans(emitter, factory.engine_id, mode, limit, facts), follows_peer=follows_peer,
        writes=mode == "push",
    )  # fmt: skip


def make_transfers(sink: Sink, engine_id: str, *, limit: int = 100) -> TransferSpans:
    return TransferSpans(make_factory(sink, engine_id), TraceBook(100), {}, limit)


def feed(builder: SchedulerSpans | TransferSpans, *recorded: tuple[Any, ...]) -> None:
    """Dispatch events whose times are milliseconds."""
    for code, at, *rest in recorded:
        builder.handlers[code]((code, round(at * MS), *rest))

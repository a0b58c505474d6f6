"""One engine's two processes without an engine: real span builders, collector and port, times in milliseconds."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from helpers import MS, Sink, build_scheduler, make_clock
from opentelemetry.sdk.resources import Resource

from instrumented_connectors.metrics.collect import Collector
from instrumented_connectors.metrics.facts import Cause
from instrumented_connectors.metrics.port import SchedulerPort, WorkerPort
from instrumented_connectors.metrics.window import Payload, merge, read_payload
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.spans import SpanFactory
from instrumented_connectors.traces import TraceBook
from instrumented_connectors.transfer_spans import TransferSpans
from instrumented_connectors.transfer_tables import decode_registration


@dataclass
class Identity:
    engine_id: str
    role: str
    mode: str


class Process:
    """Scheduler or worker process of one engine; `now` is set by the events fed to it."""

    def __init__(self, role: str, mode: str, *, scheduler: bool, rank: int = 0, ranks: int = 1) -> None:
        self.now = 0
        self.sink = Sink()
        causes: dict[str, Cause] = {}
        identity = Identity("P0" if role == "prefill" else "D0", role, mode)
        self.collector = Collector(
            self.sink, make_clock(), identity, causes=causes, limit=100, decode_registration=decode_registration,
            now=lambda: self.now,
        )  # fmt: skip
        factory = SpanFactory(self.collector, Resource({}), make_clock(), identity.engine_id)
        self.recorder = Recorder(1000)
        self.collector.backend, self.collector.rank = "UCX", rank
        traces = TraceBook(100)
        self.transfers = TransferSpans(factory, traces, causes, 100, rank)
        self.scheduler = build_scheduler(
            factory, traces=traces, causes=causes, mode=mode, follows_peer=mode != "push", facts=self.collector.facts,
        )  # fmt: skip
        self.builders = (self.transfers, self.scheduler._decisions, self.scheduler, self.collector)
        self.port: Any
        if scheduler:
            self.collector.process = "scheduler"
            self.collector.facts.ranks = ranks
            self.port = SchedulerPort(self.collector, self.drain, self.recorder, asks=True)
        else:
            self.port = WorkerPort(self.collector, self.drain)

    def feed(self, *recorded: tuple[Any, ...]) -> None:
        """Record events and dispatch them."""
        for code, at, *rest in recorded:
            self.recorder.record((code, round(at * MS), *rest))
        self.drain()

    def drain(self) -> None:
        for event in self.recorder.drain():
            self.now = max(self.now, event[1])
            for builder in self.builders:
                if event[0] in builder.handlers:
                    builder.handlers[event[0]](event)
        self.collector.publish()

    def deliver(self, after_ms: float = 2000) -> Any:
        """Return the stats that this process hands over once an interval has passed."""
        self.now += round(after_ms * MS)
        self.drain()
        return self.port.stats(None)


def make_output(stats: Any = None, received: Any = (), sent: Any = ()) -> Any:
    return SimpleNamespace(
        finished_recving=set(received) or None, finished_sending=set(sent) or None, kv_connector_stats=stats
    )


def cross(stats: Any) -> Any:
    """Send stats to another process."""
    return pickle.loads(pickle.dumps(stats))


def values(payloads: list[Payload], name: str) -> dict[tuple[str, ...], Any]:
    """Return a metric's values by label values: a number, or a histogram's (count, sum)."""
    total: Payload = {"v": 1, "c": {}, "g": {}, "h": {}}
    for payload in payloads:
        merge(total, payload)
    found = {labels: value for metric, labels, value in read_payload(total) if metric.name == f"kvlens_{name}"}
    return {
        labels: (sum(value[1:]), round(value[0], 6)) if isinstance(value, list) else round(value, 6)
        for labels, value in found.items()
    }

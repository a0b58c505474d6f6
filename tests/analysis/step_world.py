"""A decode engine with known steps: events through the real builder and the file exporter, as an engine would."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from exporters.otlp_file import OTLPFileSpanExporter
from instrumented_connectors import catalogue, events
from instrumented_connectors.clock import Clock
from instrumented_connectors.spans import SpanFactory
from instrumented_connectors.step_records import StepRecords

MS = 1_000_000
UNIX = 1_790_000_000 * 1_000 * MS
PERF = 5_000 * 1_000 * MS


@dataclass
class StepWorld:
    """One engine process with a scheduler and one worker; times in ms since its clocks' anchor."""

    engine: str = "D0"
    role: str = "decode"
    mode: str = "pull"
    thread: str = "MainThread"
    now: float = 0.0
    step: int = 0
    spans: list[ReadableSpan] = field(default_factory=list)

    def __post_init__(self) -> None:
        resource = Resource({
            "service.name": f"vllm-{self.role}", "service.instance.id": self.engine, "kvlens.role": self.role,
            "kvlens.mode": self.mode, "kvlens.clock.boot_id": "boot-1", "kvlens.clock.anchor_unix_ns": UNIX,
            "kvlens.clock.anchor_perf_ns": PERF,
        })  # fmt: skip
        clock = Clock(perf_ns=lambda: PERF, unix_ns=lambda: UNIX, boot_id="boot-1")
        self.factory = SpanFactory(self, resource, clock, self.engine)
        self.records = StepRecords(self.factory, 1000)
        self.known: set[str] = set()

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def feed(self, code: int, at: float, *rest: object) -> None:
        self.records.handlers[code]((code, PERF + round(at * MS), *rest))

    def arrive(self, request_id: str, prompt: int) -> None:
        self.feed(events.ARRIVE, self.now, request_id, prompt, False, True, "P0", "p", None)

    def run(
        self, scheduled: dict[str, int], execution: float, *, posts: list[tuple[str, float]] | None = None,
        poll: float = 0.0, gap: float = 0.0, preempted: int = 0, computed: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Run one step after a gap: execution, then the posts (request, ms), then the poll."""
        self.step += 1
        self.now += gap
        begin = self.now
        new = [SimpleNamespace(req_id=r, num_computed_tokens=(computed or {}).get(r, 0))
               for r in scheduled if r not in self.known]  # fmt: skip
        self.known |= scheduled.keys()
        self.feed(events.STEP, begin, scheduled, new, self.step, 0, preempted)
        at = lambda ms: PERF + round(ms * MS)  # noqa: E731
        load = self.now = begin + execution
        for request_id, took in posts or ():
            self.span(catalogue.POST, self.now, self.now + took, request_id, thread=self.thread)
            self.now += took
        loaded, self.now = self.now, self.now + poll
        mark = (self.step, sum(scheduled.values()), len(scheduled), preempted)
        self.feed(
            events.WORKER_STEP, self.now, mark, at(begin), at(load), at(loaded), 0, at(loaded), self.thread
        )  # fmt: skip
        self.feed(events.STEP_END, self.now, 0)

    def span(
        self, name: str, begin: float, end: float, request_id: str, *, thread: str = "", direction: str = "READ"
    ) -> None:
        attributes = {"request_id": request_id, "request_key": request_id, "direction": direction, "rank": 0,
                      "thread": thread or None, "descriptors": 10}  # fmt: skip
        self.factory.emit(name, 1, PERF + round(begin * MS), PERF + round(end * MS), attributes)

    def write(self, run: Path) -> Path:
        """Write what was recorded as a run directory."""
        self.records.close()
        exporter = OTLPFileSpanExporter(run / "traces")
        exporter.export(self.spans)
        exporter.shutdown()
        return run

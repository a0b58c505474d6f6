"""What step records cost: on the engine's threads, in the background thread per step, and their memory over time."""

from __future__ import annotations

import gc
import sys
from time import thread_time_ns
from types import SimpleNamespace

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from instrumented_connectors.clock import Clock
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens
from instrumented_connectors.spans import SpanFactory
from instrumented_connectors.step_records import StepRecords
from instrumented_connectors.worker_lens import WorkerLens

from .measure import time_calls

STEPS, TIMED = 1_000_000, 50_000
BATCH = 64
CHUNK = 1000


class Count:
    """Counts spans and the numbers in them."""

    def __init__(self) -> None:
        self.spans = self.values = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.spans += 1
        self.values += sum(len(v) for v in (span.attributes or {}).values() if isinstance(v, tuple))


class Engine:
    """The calls that vLLM makes in a step, with a batch that changes now and then."""

    def __init__(self) -> None:
        self.recorder = Recorder(1 << 20)
        self.scheduler = SchedulerLens(self.recorder, consumes=True)
        self.worker = WorkerLens(self.recorder, follows_peer=True)
        self.count = 0
        self.output = self._make_output()
        self.metadata = SimpleNamespace(reqs_to_recv={}, push_finished_blocks={})

    def _make_output(self) -> SimpleNamespace:
        scheduled = {f"cmpl-request-{self.count}-{number}-0a1b2c3d": 1 for number in range(BATCH)}
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[],
            total_num_scheduled_tokens=BATCH,
            preempted_req_ids=None,
        )

    def schedule(self) -> None:
        self.scheduler.scheduled(self.output)
        self.scheduler.attach(self.metadata)
        self.scheduler.step_ended()

    def work(self) -> None:
        worker, metadata = self.worker, self.metadata
        worker.begun()
        worker.loading(metadata)
        worker.loaded()
        worker.saving()
        worker.saved()
        worker.polling()
        worker.reported(None, None, None)

    def step(self) -> None:
        self.count += 1
        if self.count % 200 == 0:
            self.output = self._make_output()
        self.schedule()
        self.work()


def feed(engine: Engine, records: StepRecords) -> int:
    """Run CHUNK steps, then do the background thread's part of them; return its CPU time (ns)."""
    for _ in range(CHUNK):
        engine.step()
    recorded = engine.recorder.drain()
    begin = thread_time_ns()
    for event in recorded:
        handler = records.handlers.get(event[0])
        if handler is not None:
            handler(event)
    return thread_time_ns() - begin


def run() -> None:
    """Print the figures."""
    engine, sink = Engine(), Count()
    print(f"  scheduler's thread, per step   {time_calls(engine.schedule, between=engine.recorder.clear)}")
    print(f"  worker's thread, per step      {time_calls(engine.work, between=engine.recorder.clear)}")

    records = StepRecords(SpanFactory(sink, Resource({}), Clock(), "D0"), 16384)
    spent = sum(feed(engine, records) for _ in range(TIMED // CHUNK))
    mean_us = spent / TIMED / 1000
    print(f"  background thread, per step    mean   {mean_us:8.3f} us CPU   (batch of {BATCH}, {TIMED:,} steps)")
    sink.spans = sink.values = 0
    levels = []
    for done in range(0, STEPS, CHUNK):
        feed(engine, records)
        if done % (STEPS // 10) == 0:
            gc.collect()
            levels.append(sys.getallocatedblocks())
    print(f"  {STEPS:,} steps -> {sink.spans:,} spans, {sink.values / STEPS:.1f} numbers per step")
    print(f"  memory blocks held by Python: {levels[1]:,} after a tenth, {levels[-1]:,} at the end")
    # The batch in progress holds a few thousand; a leak of one block per step would be hundreds of thousands.
    if levels[-1] > levels[1] + 20_000:
        raise SystemExit(f"step records grow: {levels}")

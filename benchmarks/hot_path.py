"""What one recorded event costs an engine thread, beside an OpenTelemetry span with the same facts there."""

from __future__ import annotations

from collections.abc import Sequence
from threading import current_thread
from time import perf_counter_ns
from types import SimpleNamespace

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from instrumented_connectors.events import POSTED, STEP_END
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens

from .measure import time_calls

ATTRIBUTES = {
    "kv_transfer.request_id": "cmpl-0123456789-0-0123abcd", "kv_transfer.direction": "READ",
    "kv_transfer.descriptors": 1024, "kv_transfer.thread": "MainThread", "kv_transfer.rank": 0,
    "kv_transfer.peer_engine_id": "prefill-0",
}  # fmt: skip


class Discard(SpanExporter):
    """Exports to nowhere, so that only the SDK's own cost is measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def run() -> None:
    """Print the figures."""
    recorder = Recorder(1 << 20)
    record, handle = recorder.record, object()

    def record_post() -> None:
        start = perf_counter_ns()
        record((POSTED, start, perf_counter_ns(), id(handle), current_thread().name, True))

    def record_bare() -> None:
        record((STEP_END, perf_counter_ns()))

    lens = SchedulerLens(recorder, consumes=True)
    running = SimpleNamespace(req_ids=["a"], resumed_req_ids=set(), new_block_ids=[None])
    output = SimpleNamespace(
        num_scheduled_tokens={"a": 1}, scheduled_new_reqs=[], scheduled_cached_reqs=running, preempted_req_ids=None
    )
    request = SimpleNamespace(request_id=ATTRIBUTES["kv_transfer.request_id"])
    answer = (100, True)

    provider = TracerProvider()
    processor = BatchSpanProcessor(Discard(), max_queue_size=4096, schedule_delay_millis=3_600_000)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("kvlens.benchmark")

    def sdk_span() -> None:
        tracer.start_span("post", attributes=ATTRIBUTES).end()

    bare = time_calls(record_bare, between=recorder.clear)
    rows = [
        ("time-stamped event appended", bare),
        ("post: two stamps, thread name, six fields", time_calls(record_post, between=recorder.clear)),
        ("scheduler step begins (guarded hook)", time_calls(lambda: lens.scheduled(output), between=recorder.clear)),
        ("connector asked for tokens (guarded hook)",
         time_calls(lambda: lens.matched(request, 0, answer), between=recorder.clear)),
        ("scheduler step ends (guarded hook)", time_calls(lens.step_ended, between=recorder.clear)),
        ("OpenTelemetry span, start and end", time_calls(sdk_span, blocks=200, between=processor.force_flush)),
    ]  # fmt: skip
    for name, cost in rows:
        print(f"  {name:44s} {cost}")
    span = rows[-1][1]
    print("  ratio of an OpenTelemetry span to one event:")
    for name, cost in rows[:-1]:
        print(f"  {name:44s} median {span.median_ns / cost.median_ns:6.1f}x   p99 {span.p99_ns / cost.p99_ns:6.1f}x")
    provider.shutdown()

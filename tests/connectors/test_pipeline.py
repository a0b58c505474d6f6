"""The pipeline's account is exact whatever exporters do, and nothing waits for them longer than it may."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from instrumented_connectors.export_queue import ExportCounts, ExportQueue, Limits
from instrumented_connectors.pipeline import Pipeline, build_pipeline, find_exporter, read_limits
from instrumented_connectors.settings import Settings

QUICK = Limits(queue_size=100, batch_size=10, delay_s=0.01)
# Only an explicit flush or a full batch exports.
PATIENT = Limits(queue_size=100, batch_size=10, delay_s=3600)

HANG_S = 60.0


class Keeping(SpanExporter):
    """Keeps what it gets; `answer` decides the result."""

    def __init__(self, answer: Callable[[int], SpanExportResult] = lambda _: SpanExportResult.SUCCESS) -> None:
        self.spans: list[str] = []
        self.closed = 0
        self._answer = answer

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._answer(len(spans))
        if result is SpanExportResult.SUCCESS:
            self.spans += [span.name for span in spans]
        return result

    def shutdown(self) -> None:
        self.closed += 1


class Hanging(Keeping):
    """Hangs in export until it is shut down (or for ever)."""

    def __init__(self, *, heeds_shutdown: bool) -> None:
        super().__init__()
        self.entered, self._go = threading.Event(), threading.Event()
        self._heeds_shutdown = heeds_shutdown

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self._go.wait(HANG_S)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        if self._heeds_shutdown:
            self._go.set()
        else:
            time.sleep(HANG_S)


def put(target: Pipeline | ExportQueue, count: int, start: int = 0) -> None:
    send = target.on_end if isinstance(target, Pipeline) else target.put
    for number in range(start, start + count):
        send(ReadableSpan(name=str(number)))


def make_queue(exporter: SpanExporter, limits: Limits = QUICK, name: str = "x") -> ExportQueue:
    return ExportQueue(name, lambda: exporter, limits)


def test_every_span_arrives_once_and_in_order() -> None:
    exporter = Keeping()
    pipeline = Pipeline([make_queue(exporter, Limits(queue_size=1000, batch_size=7, delay_s=0.01))])
    put(pipeline, 500)
    assert pipeline.flush()
    assert exporter.spans == [str(number) for number in range(500)]
    assert pipeline.counters() == {"x": ExportCounts(exported=500)}
    assert pipeline.produced == 500


def test_a_batch_goes_out_after_the_delay_without_a_flush() -> None:
    exporter = Keeping()
    queue = make_queue(exporter, Limits(queue_size=100, batch_size=100, delay_s=0.05))
    put(queue, 3)
    assert queue.wait_empty(10)
    put(queue, 3)
    assert queue.wait_empty(10)
    assert queue.counts() == ExportCounts(exported=6)


def test_a_full_queue_drops_and_counts_what_is_in_flight_too() -> None:
    exporter = Hanging(heeds_shutdown=True)
    queue = make_queue(exporter, PATIENT)
    put(queue, 10)
    assert exporter.entered.wait(10)
    put(queue, 500)
    assert queue.counts() == ExportCounts(queued=100, dropped=410)
    queue.close(10)
    assert queue.counts() == ExportCounts(dropped=500, failed=10)


def fail(_: int) -> SpanExportResult:
    return SpanExportResult.FAILURE


def explode(_: int) -> SpanExportResult:
    raise OSError("no route")


@pytest.mark.parametrize("answer", [fail, explode])
def test_failures_are_counted_and_logged_once(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue = make_queue(Keeping(answer))
    put(queue, 95)
    queue.hurry()
    assert queue.wait_empty(10)
    assert queue.counts() == ExportCounts(failed=95)
    assert [record.getMessage() for record in caplog.records] == (
        ["kvlens: exporter x fails: no route; further failures are only counted"] if answer is explode else []
    )


def test_an_exporter_that_cannot_be_made_is_tried_again() -> None:
    ready = []

    def make() -> SpanExporter:
        if not ready:
            raise OSError("not yet")
        return Keeping()

    queue = ExportQueue("x", make, QUICK)
    for number in range(3):
        # By rounds, not by tries: a busy machine exports a round in several batches.
        ready.extend([True] if number == 2 else [])
        put(queue, 5)
        assert queue.wait_empty(10)
    assert queue.counts() == ExportCounts(exported=5, failed=10)


def test_an_exporter_that_counts_is_believed() -> None:
    class HalfWritten(Keeping):
        exported_spans = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.exported_spans += 4
            return SpanExportResult.FAILURE

    queue = make_queue(HalfWritten(), PATIENT)
    put(queue, 20)
    queue.hurry()
    assert queue.wait_empty(10)
    assert queue.counts() == ExportCounts(exported=8, failed=12)


@pytest.mark.parametrize("heeds_shutdown", [True, False])
def test_closing_is_bounded_and_the_account_final(heeds_shutdown: bool) -> None:
    exporter, good = Hanging(heeds_shutdown=heeds_shutdown), Keeping()
    pipeline = Pipeline([make_queue(exporter, PATIENT, "bad"), make_queue(good, PATIENT, "good")], budget_s=3.0)
    put(pipeline, 95)
    began = time.monotonic()
    for _ in range(4):
        pipeline.close()
    # All closes together share the budget; one that waited for the exporter would take HANG_S.
    assert time.monotonic() - began < HANG_S / 4
    assert pipeline.counters() == {
        "bad": ExportCounts(dropped=85, failed=10),
        "good": ExportCounts(exported=95),
    }


def test_a_late_answer_changes_nothing() -> None:
    exporter = Hanging(heeds_shutdown=False)
    queue = make_queue(exporter, PATIENT)
    put(queue, 10)
    assert exporter.entered.wait(10)
    queue.close(0.05)
    exporter._go.set()
    time.sleep(0.1)
    assert queue.counts() == ExportCounts(failed=10)


def test_spans_after_a_close_start_a_new_exporter() -> None:
    made: list[Keeping] = []

    def make() -> Keeping:
        made.append(Keeping())
        return made[-1]

    pipeline = Pipeline([ExportQueue("x", make, PATIENT)])
    put(pipeline, 3)
    pipeline.shutdown()
    put(pipeline, 2)
    pipeline.shutdown()
    assert [(exporter.spans, exporter.closed) for exporter in made] == [(["0", "1", "2"], 1), (["0", "1"], 1)]
    assert pipeline.counters() == {"x": ExportCounts(exported=5)}


def test_threads_that_end_spans_at_the_same_time_lose_none_from_the_account() -> None:
    pipeline = Pipeline([make_queue(Keeping(), Limits(queue_size=50, batch_size=10, delay_s=0.001))])
    threads = [threading.Thread(target=put, args=(pipeline, 2000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pipeline.flush(10)
    counts = pipeline.counters()["x"]
    assert counts.produced == 8000
    assert counts.queued == counts.failed == 0


def test_losses_are_logged_once_per_state(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline([make_queue(Keeping(fail), name="bad"), make_queue(Keeping(), name="good")])
    put(pipeline, 5)
    with caplog.at_level(logging.INFO):
        pipeline.close()
        pipeline.close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "kvlens: exporter=bad produced=5 exported=0 dropped=0 failed=5 queued=0"),
        ("INFO", "kvlens: exporter=good produced=5 exported=5 dropped=0 failed=0 queued=0"),
    ]


def test_a_fork_starts_with_an_empty_account(tmp_path: Any) -> None:
    exporter = Hanging(heeds_shutdown=True)
    pipeline = Pipeline([make_queue(exporter, name="hanging"), make_queue(Keeping(), name="good")])
    put(pipeline, 20)
    assert exporter.entered.wait(10)
    pid = os.fork()
    if not pid:
        try:
            pipeline.restart()
            exporter._go.set()
            put(pipeline, 7)
            flushed = pipeline.flush(10)
            (tmp_path / "child").write_text(repr((flushed, pipeline.produced, pipeline.counters())))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    counts = {"hanging": ExportCounts(failed=7), "good": ExportCounts(exported=7)}
    assert (tmp_path / "child").read_text() == repr((True, 7, counts))
    pipeline.close()
    assert pipeline.counters()["hanging"].produced == 20


@pytest.mark.parametrize(
    ("env", "limits"),
    [
        ({}, Limits(8192, 512, 1.0)),
        (
            {
                "OTEL_BSP_MAX_QUEUE_SIZE": "64",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "512",
                "OTEL_BSP_SCHEDULE_DELAY": "250",
            },
            Limits(64, 64, 0.25),
        ),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many", "OTEL_BSP_SCHEDULE_DELAY": "-1"}, Limits(8192, 512, 1.0)),
    ],
)
def test_standard_variables_set_the_bounds(env: dict[str, str], limits: Limits) -> None:
    assert read_limits(env) == limits


@pytest.mark.parametrize(
    ("env", "module"),
    [
        ({}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, "http"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc"),
    ],
)
def test_the_protocol_follows_both_variables(env: dict[str, str], module: str) -> None:
    made = find_exporter("otlp", env)
    assert f".proto.{module}." in str(made.__module__)  # type: ignore[attr-defined]


def test_an_exporter_that_is_not_installed_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = build_pipeline(["nonsense", "console", "none", "console"])
    assert list(pipeline.counters()) == ["console"]
    assert len(caplog.records) == 1
    assert "pip install" in caplog.text


@pytest.mark.parametrize(
    ("env", "enabled", "names"),
    [
        ({}, True, ("kvlens",)),
        ({"OTEL_SDK_DISABLED": "true"}, False, ("kvlens",)),
        ({"OTEL_TRACES_EXPORTER": "otlp, kvlens"}, True, ("otlp", "kvlens")),
        ({"OTEL_TRACES_EXPORTER": "none"}, True, ("none",)),
    ],
)
def test_settings(env: dict[str, str], enabled: bool, names: tuple[str, ...]) -> None:
    settings = Settings.from_env(env)
    assert (settings.enabled, settings.exporters) == (enabled, names)


def test_the_hosts_provider_is_left_alone() -> None:
    before = trace.get_tracer_provider()
    pipeline = build_pipeline(["console"])
    pipeline.shutdown()
    assert trace.get_tracer_provider() is before

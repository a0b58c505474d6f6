"""kvlens's own figures, from a real runtime: increments that sum to its counters, also after drops and a fork."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from time import perf_counter_ns

import pytest
from metric_processes import values

from instrumented_connectors import events, guard
from instrumented_connectors.metrics.own import Increments, Total
from instrumented_connectors.metrics.window import Payload
from instrumented_connectors.runtime import EngineIdentity, Runtime
from instrumented_connectors.settings import Settings


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    running = Runtime(EngineIdentity("D0", "decode", "pull"), Settings(exporters=("none",), capacity=50))
    running.assembler.stop()
    running.metrics.process = "scheduler"
    yield running
    running.close()


def take(runtime: Runtime) -> Payload:
    runtime.metrics.force()
    runtime.assembler.drain()
    payload = runtime.metrics.take()
    assert payload is not None
    return payload


def record_request(runtime: Runtime, name: str) -> None:
    now = perf_counter_ns()
    runtime.recorder.record((events.ARRIVE, now, name, 10, False, True, "P0", "p", None))
    runtime.recorder.record((events.FINISH, now, name, "finished_aborted", 0, 0, 0, False))


def test_increments_sum_to_the_totals(runtime: Runtime) -> None:
    payloads = []
    for index in range(3):
        record_request(runtime, f"r{index}")
        payloads.append(take(runtime))
    assert values(payloads, "recorder_events_total")["scheduler", "recorded"] == runtime.recorder.recorded == 6
    assert values(payloads, "spans_total")["scheduler", "all", "produced"] == 3
    assert values(payloads, "requests_total") == {("decode", "finished_aborted"): 3}
    assert 0 < values(payloads, "overhead_seconds_total")["scheduler",] < 1
    assert len(values(payloads, "engine_info")) == 1
    assert values([payloads[1]], "recorder_events_total") == {("scheduler", "recorded"): 2}


def test_drops_and_swallowed_failures_are_counted(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "reraise_under_pytest", False)
    take(runtime)
    for index in range(30):
        record_request(runtime, f"r{index}")
    with guard.guard("test.site"):
        raise ValueError("swallowed")
    payload = take(runtime)
    assert values([payload], "recorder_events_total") == {("scheduler", "recorded"): 50, ("scheduler", "dropped"): 10}
    assert values([payload], "guard_errors_total") == {("scheduler",): 1}


def test_a_failing_measurement_costs_its_metric_only(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "reraise_under_pytest", False)
    monkeypatch.setattr(runtime.metrics, "_measure_span", lambda span: 1 / 0)
    record_request(runtime, "r")
    payload = take(runtime)
    assert values([payload], "requests_total") == {}
    assert values([payload], "spans_total")["scheduler", "all", "produced"] == 1


def test_a_total_that_fell_back_starts_anew() -> None:
    from instrumented_connectors.metrics.catalogue import EVICTED

    totals = iter((5.0, 7.0, 7.0, 2.0))

    def read() -> Iterator[Total]:
        yield EVICTED, ("worker",), next(totals)

    increments = Increments(read)
    assert [[value for *_, value in increments.measure()] for _ in range(4)] == [[5], [2], [], [2]]


def test_a_forked_child_delivers_its_own_only(runtime: Runtime) -> None:
    record_request(runtime, "parent")
    runtime.assembler.drain()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # An exception would run the parent's tests again in here.
        try:
            runtime.after_fork()
            runtime.assembler.stop()
            record_request(runtime, "child")
            os.write(write, pickle.dumps(take(runtime)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        payload = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    assert values([payload], "requests_total") == {("decode", "finished_aborted"): 1}
    assert values([take(runtime)], "requests_total") == {("decode", "finished_aborted"): 1}

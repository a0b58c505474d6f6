"""What an engine thread pays for an event doesn't depend on the collector."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import pytest
from collectors import HttpCollector

from instrumented_connectors import events
from instrumented_connectors import runtime as runtime_module
from instrumented_connectors.runtime import EngineIdentity, Runtime
from instrumented_connectors.settings import Settings
from lab.ports import pick_free

EVENTS = 500
ROUNDS = 15


def measure(runtime: Runtime) -> float:
    """Return the CPU time (ns) of this thread per recorded event, while the background exports them."""
    record = runtime.recorder.record
    began = thread_time_ns()
    for number in range(EVENTS):
        now = perf_counter_ns()
        record((events.HANDSHAKE, now, now + 1, "D0", "", bool(number % 2)))
    spent = thread_time_ns() - began
    runtime.assembler.drain()
    return spent / EVENTS


def test_a_missing_collector_costs_the_engine_thread_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    monkeypatch.setattr(runtime_module, "vllm_version", lambda: "")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("KVLENS_TRACES_DIR", str(tmp_path))
    settings = Settings(exporters=("otlp", "kvlens"))
    identity = EngineIdentity("P0", "prefill", "push")
    with HttpCollector() as up, HttpCollector() as silent:
        silent.behaviour = "hang"
        runtimes = {}
        endpoints = {"up": up.endpoint, "down": f"http://127.0.0.1:{pick_free(1)[0]}", "silent": silent.endpoint}
        for state, endpoint in endpoints.items():
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            runtimes[state] = Runtime(identity, settings)
            # The exporter is made here, while the variable names its collector.
            measure(runtimes[state])
            runtimes[state].pipeline.flush(1)
        # In turns, so that a busy machine is equally busy for all of them.
        cost = {state: [] for state in runtimes}
        for _ in range(ROUNDS):
            for state, runtime in runtimes.items():
                cost[state].append(measure(runtime))
        # The least disturbed round: what else runs on this machine is not the question.
        least = {state: min(values) for state, values in cost.items()}
        for runtime in runtimes.values():
            runtime.close()
            # Nothing of them is left to export when the test process ends.
            atexit.unregister(runtime.close)
            atexit.unregister(runtime.pipeline.shutdown)
            for counts in runtime.pipeline.counters().values():
                assert counts.produced == runtime.pipeline.produced
                assert counts.queued == 0
        lost = {state: runtime.pipeline.counters()["otlp"].lost for state, runtime in runtimes.items()}
    record_property("ns per event", least)
    print("engine-thread ns per event:", {state: round(ns) for state, ns in least.items()}, "lost:", lost)
    assert lost["down"] > 0
    assert lost["silent"] > 0
    # Waiting for a collector would cost a thousand times as much; what is left is the noise of a busy machine.
    assert least["down"] < 2 * least["up"], least
    assert least["silent"] < 2 * least["up"], least

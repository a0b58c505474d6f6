"""`kvlens export perfetto`: spans of known requests become slices, and arrows lead along the whole hand-over."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from span_builder import MS, Request, World, add_request, pull_times, push_times

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

from analysis.cli import main
from analysis.commands.export import export

READER = Path(__file__).parents[1] / "exporters" / "perfetto" / "trace_reader.py"
spec = importlib.util.spec_from_file_location("trace_reader", READER)
trace_reader = importlib.util.module_from_spec(spec)
sys.modules["trace_reader"] = trace_reader
spec.loader.exec_module(trace_reader)


def make_world(mode: str, ranks: int = 1, **durations: float) -> World:
    world = World(mode, ranks=ranks, skews={"decode": 3 * MS, "router": -2 * MS})
    make = push_times if mode == "push" else pull_times
    for number in range(6):
        request = Request(f"r{number}")
        segments = {"prefill_compute": 40, "wire": 10 + number, "decode_admission": 3} | durations
        times, _ = make(number * 20 * MS, **segments)
        add_request(world, request, times)
        common = {"trace": request.trace_id, "request_key": request.key}
        p_common, d_common = common | {"request_id": request.p_id}, common | {"request_id": request.d_id}
        world.emit(world.prefill, "lease", times.p_end, times.landed, **p_common, blocks=16, outcome="read")
        for rank in range(ranks):
            if mode == "push":
                world.emit(
                    world.decode, "registration.send", times.d_alloc + 10, times.d_alloc + MS // 2, **d_common,
                    thread="MainThread", rank=rank, bytes=100,
                )  # fmt: skip
                at = times.landed + 5000
                world.emit(world.decode, "notification", at, at, **d_common, thread="MainThread", rank=rank)
            seen = times.landed + 6000
            world.emit(world.decode, "completion", seen, times.told - 1000, **d_common, rank=rank, outcome="ok")
    return world


@pytest.fixture
def run_export(tmp_path):
    def run(world: World, *options: str):
        world.write(tmp_path / "run" / "traces")
        out = tmp_path / "out.perfetto-trace"
        done = CliRunner().invoke(export, ["perfetto", str(tmp_path / "run"), "--out", str(out), *options])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output, trace_reader.read_trace(out)

    return run


def follow(trace, start: str, request: str) -> list[str]:
    """Names of the slices on the way from a slice of a request, each arrow taken once, first ones first."""
    flows = [(a, b) for a, b in trace.flows]
    now = next(s for s in trace.slices if s.name == start and s.annotations.get("request_key") == request)
    path = [now.name]
    while True:
        after = [b for a, b in flows if a is now]
        if not after:
            return path
        now = min(after, key=lambda piece: (piece.start, piece.name))
        path.append(now.name)


@pytest.mark.parametrize(("ranks", "registration"), [(1, 1), (2, 1), (1, 90)])
def test_push_arrows_lead_from_registration_to_the_first_step(run_export, ranks: int, registration: int) -> None:
    output, trace = run_export(make_world("push", ranks, registration=registration))
    assert "6 requests" in output
    assert "left out" not in output
    for number in range(6):
        assert follow(trace, "registration.send", f"r{number}") == [
            "registration.send", "pairing: registration seen", "pairing: paired", "post", "wire", "notification",
            "completion", "decode.first_step",
        ]  # fmt: skip
    assert sum(s.name == "wire" for s in trace.slices) == 6 * ranks
    assert {name.split()[0] for name in trace.processes} == {"prefill", "decode", "router"}
    assert any(thread.startswith("main") for _, thread, _ in trace.threads)


def test_pull_arrows_lead_from_prefill_to_the_first_step(run_export) -> None:
    _, trace = run_export(make_world("pull"))
    for number in range(6):
        assert follow(trace, "prefill.compute", f"r{number}") == [
            "prefill.compute", "decode.admission", "post", "wire", "completion", "decode.first_step",
        ]  # fmt: skip
    assert any(a.name == f"router.prefill r{number}" and b.name == "prefill.queue" for a, b in trace.flows)


def test_durations_are_the_true_ones_and_counters_return_to_zero(run_export) -> None:
    _, trace = run_export(make_world("pull"))
    wires = sorted(s.end - s.start for s in trace.slices if s.name == "wire")
    assert wires == [(10 + number) * MS + 1000 for number in range(6)]
    held = next(points for (_, name), points in trace.counters.items() if name.startswith("held blocks"))
    assert max(level for _, level in held) % 16 == 0
    assert max(level for _, level in held) > 0
    assert held[-1][1] == 0


def test_one_request_and_the_slowest(run_export) -> None:
    output, trace = run_export(make_world("pull"), "--request", "r3")
    assert "1 requests" in output
    assert {s.annotations["request_key"] for s in trace.slices if "request_key" in s.annotations} == {"r3"}
    output, trace = run_export(make_world("pull"), "--slowest", "2")
    assert "2 requests" in output


def test_unknown_request_names_some(tmp_path) -> None:
    make_world("pull").write(tmp_path / "run" / "traces")
    done = CliRunner().invoke(main, ["export", "perfetto", str(tmp_path / "run"), "--request", "nope"])
    assert done.exit_code == 1
    assert "no request nope" in done.output


@pytest.mark.skipif("KVLENS_TRACE_PROCESSOR" not in os.environ, reason="no trace processor named")
def test_the_real_trace_processor_finds_the_same(run_export, tmp_path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    _, trace = run_export(make_world("push", 2))
    config = TraceProcessorConfig(bin_path=os.environ["KVLENS_TRACE_PROCESSOR"])
    with TraceProcessor(trace=str(tmp_path / "out.perfetto-trace"), config=config) as processor:
        assert next(iter(processor.query("select count() as n from slice"))).n == len(trace.slices)
        assert next(iter(processor.query("select count() as n from flow"))).n == len(trace.flows)
        errors = "select coalesce(sum(value), 0) as n from stats where severity = 'error'"
        assert next(iter(processor.query(errors))).n == 0

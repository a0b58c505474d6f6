"""Any timeline becomes a trace that reads back slice for slice: nested, in order, with every arrow."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

from exporters.perfetto.lanes import place
from exporters.perfetto.timeline import Counter, Flow, Process, Slice, Timeline
from exporters.perfetto.writer import write_trace

spec = importlib.util.spec_from_file_location("trace_reader", Path(__file__).with_name("trace_reader.py"))
trace_reader = importlib.util.module_from_spec(spec)
sys.modules["trace_reader"] = trace_reader
spec.loader.exec_module(trace_reader)


def write(timeline: Timeline, path: Path):
    with path.open("wb") as file:
        written = write_trace(timeline, file)
    return written, trace_reader.read_trace(path)


def make_random(seed: int, count: int = 300) -> Timeline:
    rng = random.Random(seed)
    slices = []
    for number in range(count):
        begin = rng.randrange(100)
        instant = rng.random() < 0.2
        slices.append(
            Slice(
                str(number), rng.choice("AB"), rng.choice(("t", "u")), f"s{number}", begin,
                begin if instant else begin + rng.randrange(20), owner=rng.choice("xyz"), is_instant=instant,
                is_thread=rng.random() < 0.5,
            )
        )  # fmt: skip
    # Sources begin before their targets, often at the very same moment.
    flows = set()
    for _ in range(count):
        a, b = rng.sample(slices, 2)
        if a.begin < b.begin:
            flows.add(Flow(a.key, b.key))
    processes = (Process("A", "engine A", 1, 0), Process("B", "engine B", 1, 1))
    return Timeline(processes, tuple(slices), tuple(sorted(flows, key=lambda f: (f.source, f.target))))


@pytest.mark.parametrize("seed", range(20))
def test_random_timelines_read_back(seed: int, tmp_path: Path) -> None:
    timeline = make_random(seed)
    written, trace = write(timeline, tmp_path / "t")
    names = {"A": "engine A", "B": "engine B"}
    assert sorted((s.name, s.start, s.end, s.process) for s in trace.slices) == sorted(
        (s.name, s.begin, s.end, names[s.process]) for s in timeline.slices
    )
    by_key = {s.key: s.name for s in timeline.slices}
    assert sorted((a.name, b.name) for a, b in trace.flows) == sorted(
        (by_key[f.source], by_key[f.target]) for f in timeline.flows
    )
    assert (written.flows, written.backward_flows) == (len(timeline.flows), 0)
    assert len(set(trace.processes.values())) == 2, "equal pids of two containers are told apart"


def test_arrows_of_one_moment_and_backward_ones(tmp_path: Path) -> None:
    a, b, c = (Slice(key, "A", key, key, at, at + 5) for key, at in (("z", 10), ("y", 10), ("early", 3)))
    timeline = Timeline((Process("A", "A", 7, 0),), (a, b, c), (Flow("z", "y"), Flow("y", "early")))
    written, trace = write(timeline, tmp_path / "t")
    assert (written.flows, written.backward_flows) == (1, 1)
    assert [(x.name, y.name) for x, y in trace.flows] == [("z", "y")]


def test_slices_of_different_owners_never_nest() -> None:
    outer, own, other = (
        Slice(name, "A", "t", name, begin, end, owner)
        for name, begin, end, owner in (("outer", 0, 10, "x"), ("own", 2, 4, "x"), ("other", 2, 4, "y"))
    )
    lanes = {piece.name: lane for lane, piece in place([other, own, outer])}
    assert lanes["outer"] == lanes["own"] != lanes["other"]


def test_counters_and_annotations(tmp_path: Path) -> None:
    piece = Slice("k", "A", "t", "wire", 5, 9, attributes={"bytes": 1 << 40, "direction": "READ"})
    counter = Counter("A", "held blocks", "blocks", ((5, 3), (7, 0)))
    _, trace = write(Timeline((Process("A", "A", 7, 0),), (piece,), (), (counter,)), tmp_path / "t")
    assert trace.slices[0].annotations == {"bytes": 1 << 40, "direction": "READ"}
    assert trace.counters == {("A", "held blocks"): [(5, 3), (7, 0)]}


def test_an_empty_timeline_is_a_valid_trace(tmp_path: Path) -> None:
    _, trace = write(Timeline((), ()), tmp_path / "t")
    assert trace.slices == []

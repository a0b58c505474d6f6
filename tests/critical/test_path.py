"""Drag and slack against planted truth: the request is built again with the segment at zero, or longer by its slack."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from span_builder import MS, Request, World, add_request, pull_times, push_times

from analysis.breakdown import break_down
from analysis.cli import main
from analysis.critical.summary import load_paths
from analysis.source import open_session

# Segment -> the builder's duration that makes it; a push request's D leg is on its way for d_ingress.
PUSH = {
    "prefill_ingress": "prefill_ingress", "prefill_queue": "prefill_queue", "prefill_compute": "prefill_compute",
    "pairing": "d_ingress", "decode_admission": "decode_admission", "registration": "registration",
    "dispatch": "dispatch", "post": "post", "wire": "wire", "completion_lag": "completion_lag",
    "decode_queue": "decode_queue", "first_decode": "first_decode",
}  # fmt: skip
PULL = {name: name for name in PUSH if name not in ("pairing", "registration")} | {
    "handoff_dispatch": "handoff_dispatch"
}
LANDING_MS = 0.002
COUNT = 12


def draw_durations(draw, names):
    return {name: draw.choice([0.5, draw.uniform(0.1, 20), draw.uniform(5, 200)]) for name in names}


def measure_ttft(make, durations):
    times, _ = make(0, **durations)
    return (times.first_byte - times.sent) / MS


def find_paths(folder, mode, many):
    world = World(mode, ranks=1)
    make = push_times if mode == "push" else pull_times
    for number, durations in enumerate(many):
        times, _ = make(number * 2000 * MS, **durations)
        add_request(world, Request(f"r{number}", suffix=f"{number:08d}"), times)
    world.write(folder / "run" / "traces")
    with open_session([folder / "run"]) as session:
        return load_paths(session, break_down(session)).sort("ttft_start").rows(named=True)


@pytest.mark.parametrize(("mode", "names", "make"), [("push", PUSH, push_times), ("pull", PULL, pull_times)])
def test_drag_is_what_zero_length_would_save(tmp_path, mode, names, make):
    draw = random.Random(mode)
    many = [draw_durations(draw, names.values()) for _ in range(COUNT)]
    sides = set()
    for row, durations in zip(find_paths(tmp_path, mode, many), many, strict=True):
        whole = measure_ttft(make, durations)
        assert row["ttft"] / MS == pytest.approx(whole)
        for segment, duration in names.items():
            saved = whole - measure_ttft(make, durations | {duration: 0})
            assert row[f"drag_{segment}"] / MS == pytest.approx(saved, abs=LANDING_MS), (segment, durations)
            spare = row[f"slack_{segment}"] / MS
            assert measure_ttft(make, durations | {duration: durations[duration] + spare}) == pytest.approx(whole)
            longer = measure_ttft(make, durations | {duration: durations[duration] + spare + 1})
            assert longer == pytest.approx(whole + 1)  # slack is not a ns too small
            assert row[f"len_{segment}"] / MS == pytest.approx(durations[duration], abs=LANDING_MS)
        sides.add(row["lead"] is not None and row["lead"] > 0)
    assert len(sides) == (2 if mode == "push" else 1)  # both branches were critical in some request


def test_handshake_in_the_decode_branch(tmp_path):
    """D shakes hands for 40 of 60 ms of registration, and is 50 ms behind P: without it D would be 40 ms sooner."""
    world = World("push")
    times, _ = push_times(0, prefill_compute=10, registration=60)
    world.handshake(world.decode, world.prefill, times.d_alloc, times.d_alloc + 40 * MS)
    add_request(world, Request("r"), times)
    world.write(tmp_path / "run" / "traces")
    with open_session([tmp_path / "run"]) as session:
        (row,) = load_paths(session, break_down(session)).rows(named=True)
    assert row["lead"] == times.p_end - times.seen < 0
    assert row["drag_handshake"] / MS == pytest.approx(40)
    assert row["drag_registration"] / MS == pytest.approx(20)
    assert row["drag_prefill_compute"] == 0
    assert row["slack_prefill_compute"] == -row["lead"]


def test_lead_of_the_last_rank(tmp_path):
    world = World("pull", ranks=2)
    add_request(world, Request("r"), pull_times(0, wire=90)[0], slow_rank=1, slow_ns=60 * MS)
    world.write(tmp_path / "run" / "traces")
    with open_session([tmp_path / "run"]) as session:
        (row,) = load_paths(session, break_down(session)).rows(named=True)
    assert row["rank_lead"] / MS == pytest.approx(60)
    assert row["drag_wire"] / MS == pytest.approx(90, abs=LANDING_MS)


def test_command(tmp_path):
    runs = Path(__file__).parents[1] / "fixtures" / "runs"
    run = CliRunner()
    document = json.loads(
        run.invoke(main, ["critical-path", str(runs / "push"), "--json"], catch_exceptions=False).output
    )
    mode = document["modes"]["push"]
    assert mode["top"] == "slowest 25 %"
    assert sum(row["difference_ms"] for row in mode["differences"]) == pytest.approx(
        sum(row["top_ms"] - row["middle_ms"] for row in mode["differences"]), abs=1e-3
    )
    one = run.invoke(main, ["critical-path", str(runs / "push"), "--request", "req-7-00003"], catch_exceptions=False)
    assert "the prefill branch decided" in one.output
    assert run.invoke(main, ["critical-path", str(runs / "push"), "--request", "nobody"]).exit_code == 1

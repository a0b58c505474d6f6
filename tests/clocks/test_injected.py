"""Clocks put off on purpose in recorded and synthetic runs: segments come out as they were, within their doubt."""

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from inject import inject_clocks
from span_builder import MS, Request, World, add_request, pull_times

from analysis.breakdown import break_down
from analysis.cli import main
from analysis.clocks.align import align_clocks
from analysis.clocks.correct import correct_rows
from analysis.render.notes import list_notes
from analysis.segments import SEGMENTS
from analysis.source import open_session
from analysis.synthetic.parameters import Parameters
from analysis.synthetic.write import write_run
from analysis.timeline import encode_names
from analysis.whatif.hops import measure_hops
from analysis.whatif.observations import observe

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
OFF = {"prefill": (310.5, 30.0), "decode": (-456.25, -40.0)}
RATES = 100e-6
"""Lengths inside one clock change by what the injected clocks run apart, no more."""


def open_breakdown(path):
    with open_session([path]) as session:
        return break_down(session)


@pytest.fixture(scope="module", params=["pull", "push"])
def injected(request, tmp_path_factory):
    path = inject_clocks(RUNS / request.param, tmp_path_factory.mktemp("run") / request.param, OFF)
    return path, open_breakdown(RUNS / request.param), open_breakdown(path)


def test_recorded_segments_agree_within_the_published_uncertainty(injected, capsys):
    _, plain, shifted = injected
    both = plain.budgets.join(shifted.budgets, on="request_id", suffix="_off")
    assert both.height == plain.budgets.height == shifted.budgets.height == 20
    assert (both["ttft"] == both["ttft_off"]).all()
    lines = []
    for name in SEGMENTS:
        rows = both.filter(pl.col(f"seg_{name}").is_not_null() | pl.col(f"seg_{name}_off").is_not_null())
        if rows.is_empty():
            continue
        error = (rows[f"seg_{name}"] - rows[f"seg_{name}_off"]).abs()
        allowed = rows[f"unc_{name}_off"] + rows[f"unc_{name}"] + RATES * rows["ttft"] + 2_000
        assert (error <= allowed).all(), name
        if rows[f"unc_{name}_off"].max() > 0:
            lines.append(f"{name} {error.max() / 1e6:.2f} within {rows[f'unc_{name}_off'].median() / 1e6:.1f}")
    crossing = ("prefill_ingress", "delivery")
    assert all(both[f"unc_{name}"].max() == 0 < both[f"unc_{name}_off"].min() for name in crossing)
    assert both["unc_prefill_compute_off"].max() == both["unc_first_decode_off"].max() == 0
    with capsys.disabled():
        print(f"\n{plain.run.name}, clocks off by +310 and -456 ms, error at most (ms): {'; '.join(lines)}")


def test_offsets_and_drifts_are_found(injected):
    path, _, shifted = injected
    summary = shifted.summary["clocks"]
    assert (
        summary["impossible_orders"] == summary["jumps"] == summary["contradictions"] == summary["unrelated_pairs"] == 0
    )
    result = CliRunner().invoke(main, ["clocks", str(path), "--json"], catch_exceptions=False)
    document = json.loads(result.output)
    found = {(pair["first"], pair["second"]): pair for pair in document["pairs"]}
    for engine, role in (("P0", "prefill"), ("D0", "decode")):
        pair = found["router", engine]
        assert pair["offset_low_ms"] - 1 < OFF[role][0] < pair["offset_high_ms"] + 1  # 1: the drift until mid-run
        assert pair["width_ms"] < 40
        assert pair["messages"] >= 40
    notes = "\n".join(list_notes(shifted))
    assert "3 clocks, put on that of router" in notes
    table = CliRunner().invoke(main, ["clocks", str(path)], catch_exceptions=False).output
    assert "router" in table
    assert "directly" in table


def test_spans_of_a_timeline_and_legs_beside_steps_are_on_the_same_clock(injected):
    path, plain, shifted = injected
    assert (plain.relation, shifted.relation is None) == (None, False)
    timelines, hops = [], []
    for place, result in ((RUNS / path.name, plain), (path, shifted)):
        ids, traces = (encode_names(result.budgets[name]) for name in ("p_id", "trace_id"))
        with open_session([place]) as session:
            spans = session.query("timeline", ids=ids, traces=traces)
            hops.append(measure_hops(observe(session, result))[0])
        boots = spans.select("engine", "boot").unique("engine")
        timelines.append(correct_rows(spans, boots, result.relation).select("span_id", "begin"))
    both = timelines[0].join(timelines[1], on="span_id", suffix="_off")
    assert both.height > 100
    assert (both["begin"] - both["begin_off"]).abs().max() < 10 * MS
    # An engine that stepped when a request came to it did so on any clock.
    for name in ("to_prefill", "to_decode"):
        assert len(hops[0][name].busy) == pytest.approx(len(hops[1][name].busy), abs=1), name
        assert len(hops[0][name].idle) == pytest.approx(len(hops[1][name].idle), abs=1), name


def test_readbacks_between_hosts_are_those_of_one_host(tmp_path):
    """Both engines post and both hold leases of a request's blocks: only the one that a post ends tells of it."""
    source = RUNS.parent / "reuse" / "turns"
    plain, shifted = (open_breakdown(path) for path in (source, inject_clocks(source, tmp_path / "turns", OFF)))
    clocks = shifted.summary["clocks"]
    assert {"release", "lease", "notification"} <= clocks["messages"].keys()
    assert clocks["impossible_orders"] == clocks["jumps"] == clocks["contradictions"] == 0
    both = plain.budgets.join(shifted.budgets, on="request_id", suffix="_off")
    assert both["seg_readback"].is_not_null().any()
    for name in SEGMENTS:
        rows = both.filter(pl.col(f"seg_{name}").is_not_null())
        error = (rows[f"seg_{name}"] - rows[f"seg_{name}_off"]).abs()
        assert (error <= rows[f"unc_{name}_off"] + RATES * rows["ttft"] + 2_000).all(), name


def test_run_of_one_boot_costs_nothing_and_says_so():
    with open_session([RUNS / "pull"]) as session:
        assert align_clocks(session).relation is None
    result = CliRunner().invoke(main, ["clocks", str(RUNS / "pull")], catch_exceptions=False)
    assert "share one clock" in result.output


def test_synthetic_fleet_against_its_truth(tmp_path, capsys):
    """Eight hosts with +-500 ms and 50 ppm: segments equal the truth within their uncertainty."""
    parameters = Parameters(requests=400, prefill_engines=3, decode_engines=3, routers=2, ranks=1, seed=5)
    write_run(parameters, tmp_path / "run")
    found = open_breakdown(tmp_path / "run")
    truth = pl.read_parquet(tmp_path / "run" / "truth.parquet")
    both = found.budgets.join(truth, on="request_key", suffix="_true")
    assert both.height == 400
    worst = 0.0
    for name in (
        "prefill_ingress",
        "prefill_queue",
        "prefill_compute",
        "handoff_dispatch",
        "decode_admission",
        "delivery",
    ):
        rows = both.filter(pl.col(f"seg_{name}").is_not_null())
        error = (rows[f"seg_{name}"] - rows[f"seg_{name}_true"].fill_nan(0) * 1e6).abs()
        assert (error <= rows[f"unc_{name}"] + RATES * rows["ttft"] + 2_000).all(), name
        worst = max(worst, error.max() / 1e6)
    width = found.summary["clocks"]["width_ms"]
    with capsys.disabled():
        print(f"\nsynthetic fleet: error {worst:.3f} ms at most; width of pairs {width['p50']:.2f} ms at the median")
    assert found.summary["clocks"]["unrelated_pairs"] == 0


def test_unrelated_clocks_give_no_number(analyse):
    """Without a router a pull's hand-over goes one way: no TTFT across the two clocks is made up."""
    world = World("pull", boots={"decode": "boot-2"}, skews={"decode": 200 * MS})
    for number in range(4):
        add_request(world, Request(f"r{number}"), pull_times(number * 400 * MS)[0], router=False)
    world.prefill.spans = [span for span in world.prefill.spans if span["name"] not in ("lease", "notification")]
    document = analyse(world)
    assert document["requests"] == []
    assert document["summary"]["clocks"]["requests_without_ttft"] == 4
    assert document["summary"]["clocks"]["unrelated_pairs"] == 1


def test_equal_ids_meet_in_corrected_order(analyse):
    """One id used twice, on hosts whose clocks reverse the order: each attempt meets its own router request."""
    worlds = []
    for number, skew in enumerate((400, -400)):
        boots = {side: f"boot-{side}-{number}" for side in ("prefill", "decode")}
        world = World("pull", boots=boots, skews={"prefill": skew * MS, "decode": skew * MS})
        for process in (world.router, world.prefill, world.decode):
            process.engine, process.pid = f"{process.engine}-{number}", process.pid + 10 * number
        for at in range(20):
            times = pull_times(at * 500 * MS, prefill_compute=40 + at)[0]
            add_request(world, Request(f"world-{number}-{at}", suffix=f"{number}{at:07d}"), times)
        again = pull_times((12_000 + 200 * number) * MS, prefill_compute=50 + 30 * number)[0]
        add_request(world, Request("again", suffix=f"{number}0000099"), again)
        worlds.append(world)
    rows = [row for row in analyse(*worlds)["requests"] if row["request_key"] == "again"]
    assert [row["prefill_engine"] for row in rows] == ["P0-0", "P0-1"]
    for number, row in enumerate(rows):
        assert row["segments"]["prefill_compute"] == pytest.approx(50 + 30 * number, abs=0.01)
        assert row["ttft_ms"] == pytest.approx(12 + 50 + 30 * number, abs=0.01)
        assert row["residual_ms"] == pytest.approx(0, abs=1e-6)

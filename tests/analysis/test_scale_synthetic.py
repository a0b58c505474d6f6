"""Synthetic runs: labelled, seeded, and their truth is what the breakdown finds."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from analysis.breakdown import break_down
from analysis.cli import main
from analysis.clocks import messages
from analysis.clocks.align import align_clocks
from analysis.source import open_session
from analysis.synthetic.fleet import EPOCH
from analysis.synthetic.parameters import Fault, Parameters
from analysis.synthetic.queues import first_contacts, next_tick, serve_in_order
from analysis.synthetic.write import write_run

MS = 1e6
ANCHORS_MS = 0.05
"""Two processes of a host anchor their clocks this far apart at most; re-basing puts them on one of them."""


def digest(run: Path) -> str:
    names = sorted((run / "traces").iterdir())
    return hashlib.blake2b(b"".join(path.name.encode() + path.read_bytes() for path in names)).hexdigest()


def test_equal_seeds_give_equal_bytes(tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_run(Parameters(requests=60, seed=seed, drop=0.05, kills=1), tmp_path / name)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_with_true_clocks_the_breakdown_finds_the_truth(tmp_path, mode: str) -> None:
    faults = (Fault("wire", 200, 0.05), Fault("registration", 90, 0.05), Fault("decode_admission", 70, 0.05))
    parameters = Parameters(
        requests=300, mode=mode, prefill_engines=2,
        decode_engines=2, clock_offset_ms=0, clock_drift_ppm=0, faults=faults
    )  # fmt: skip
    write_run(parameters, tmp_path)
    truth = pl.read_parquet(tmp_path / "truth.parquet")
    with open_session([tmp_path]) as session:
        budgets = break_down(session).budgets
    both = budgets.join(truth, on="request_key", suffix="_true")
    assert both.height == 300
    assert (both["residual"].abs().max() or 0) == 0
    assert np.abs(both["ttft"].to_numpy() / MS - both["ttft_ms"].to_numpy()).max() < ANCHORS_MS
    within = dict.fromkeys(("prefill_queue", "prefill_compute", "decode_queue", "first_decode", "route"), ANCHORS_MS)
    # Between hosts, as good as the messages bound their clocks.
    within |= dict.fromkeys(("prefill_ingress", "delivery", "handoff_dispatch"), 2.0)
    for name, tolerance in within.items():
        off = np.abs(both[f"seg_{name}"].fill_null(0).to_numpy() / MS - both[f"seg_{name}_true"].to_numpy())
        assert np.median(off) < tolerance, name
    # The landing is known between two polls only, and the slowest rank by polls need not be the slowest by bytes.
    off = np.abs(both["seg_wire"].fill_null(0).to_numpy() / MS - both["seg_wire_true"].to_numpy())
    assert np.quantile(off, 0.9) <= both["uncertainty_ns"].quantile(0.95) / MS + parameters.decode_step_ms
    slow = both.filter(pl.col("fault") == "wire")["seg_wire"].median()
    assert slow > both.filter(pl.col("fault").is_null())["seg_wire"].median() + 190 * MS


def test_clocks_are_as_the_truth_says(tmp_path) -> None:
    write_run(Parameters(requests=200, prefill_engines=2, decode_engines=2), tmp_path)
    clocks = pl.read_parquet(tmp_path / "truth_clocks.parquet")
    truth = pl.read_parquet(tmp_path / "truth.parquet")
    with open_session([tmp_path]) as session:
        found = session.query("milestones")
    both = found.join(truth, on="p_id", suffix="_true").join(
        clocks.unique("boot_id"), left_on="p_boot", right_on="boot_id"
    )
    true = both["t_p_end"]
    expected = true + both["rebased_offset_ns"] + ((true - EPOCH) * both["drift_ppm"] * 1e-6).round(0).cast(pl.Int64)
    assert (both["p_end"] - expected).abs().max() <= 2
    assert both["rebased_offset_ns"].n_unique() >= 2


def test_some_of_the_requests_tell_the_clocks(tmp_path, monkeypatch) -> None:
    """Of many requests one in a few is looked at: the true offsets stay inside the intervals."""
    monkeypatch.setattr(messages, "MOST", 300)
    monkeypatch.setattr(messages, "LEAST", 50)
    write_run(Parameters(requests=1500, prefill_engines=2, decode_engines=2, drop=0.01), tmp_path)
    truth = pl.read_parquet(tmp_path / "truth_clocks.parquet").unique("boot_id")
    with open_session([tmp_path]) as session:
        whole, found = session.query("messages", one_in=1).height, align_clocks(session)
        assert messages.choose_stride(found.engines) == 5
    assert found.messages is not None
    assert found.relation is not None
    assert found.messages.filter(pl.col("kind").is_in(["registration", "lease"])).height < whole / 4
    relation, at = found.relation, np.linspace(found.routers["r_start"].min(), found.routers["r_end"].max(), 9)  # type: ignore[arg-type]
    clock = {
        row["boot_id"]: EPOCH + row["rebased_offset_ns"] + (at - EPOCH) * (1 + row["drift_ppm"] * 1e-6)
        for row in truth.iter_rows(named=True)
    }
    for one, other in combinations(range(len(relation.names)), 2):
        first, second = (clock[relation.names[place]] - float(relation.zero[place]) for place in (one, other))
        low, high = relation.bound(np.full(9, one), np.full(9, other), first)
        assert np.isfinite(high - low).all()
        assert ((low - 1_000 <= second - first) & (second - first <= high + 1_000)).all()


def test_losses_take_spans_and_requests_apart(tmp_path) -> None:
    whole = write_run(Parameters(requests=400, prefill_engines=2, decode_engines=2), tmp_path / "whole").spans
    lossy = write_run(
        Parameters(requests=400, prefill_engines=2, decode_engines=2, drop=0.1, kills=2), tmp_path / "lossy"
    ).spans
    assert 0.7 * whole < lossy < 0.95 * whole
    truth = pl.read_parquet(tmp_path / "lossy" / "truth.parquet")
    assert truth.filter(pl.col("broken_ns").is_not_null()).height > 0
    assert truth.filter(pl.col("ttft_ms").is_null()).height <= truth.filter(pl.col("broken_ns").is_not_null()).height


def test_it_says_that_it_is_synthetic(tmp_path) -> None:
    done = CliRunner().invoke(main, ["synthetic", "--requests", "50", "--out", str(tmp_path), "--fault", "wire=9ms@5%"])
    assert done.exit_code == 0, done.output
    assert "SYNTHETIC" in done.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["synthetic"] is True
    assert manifest["parameters"]["faults"] == [{"site": "wire", "ms": 9.0, "share": 0.05}]
    shown = CliRunner().invoke(main, ["breakdown", str(tmp_path)])
    assert "SYNTHETIC" in shown.output
    wrong = CliRunner().invoke(main, ["synthetic", "--out", str(tmp_path), "--fault", "nothing=1@1"])
    assert wrong.exit_code == 2
    (tmp_path / "manifest.json").write_text("{}")
    measured = CliRunner().invoke(main, ["synthetic", "--requests", "5", "--out", str(tmp_path)])
    assert measured.exit_code == 2


def test_queues_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    arrive, service, server = rng.uniform(0, 100, 200), rng.uniform(0, 3, 200), rng.integers(0, 4, 200)
    begin = serve_in_order(arrive, service, server)
    free = np.zeros(4)
    for job in np.argsort(arrive, kind="stable"):
        assert begin[job] == pytest.approx(max(arrive[job], free[server[job]]))
        free[server[job]] = begin[job] + service[job]
    ticks = next_tick(np.array([0.0, 1.0, 7.9]), np.array([1.0, 1.0, 1.0]), 4.0)
    assert ticks.tolist() == [1.0, 1.0, 9.0]
    begin, end, first = first_contacts(np.array([5.0, 3.0, 9.0]), np.array([0, 0, 1]), np.array([2.0, 1.0]))
    assert (begin.tolist(), end.tolist(), first.tolist()) == ([3, 3, 9], [5, 5, 10], [False, True, True])

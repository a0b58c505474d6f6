"""Engines with wrong clocks: is the truth inside the intervals, and are segments right within their uncertainty?

Real pairs, once on one host and once with P and D as if on hosts whose clocks are half a second off and drift by 50 ppm
in opposite directions. `runs/wrong-clocks/` keeps the runs; `KVLENS_CLOCKS_MODES=push` records and measures one mode.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from analysis.breakdown import Breakdown, break_down
from analysis.clocks.align import Aligned, align_clocks
from analysis.segments import SEGMENTS
from analysis.source import open_session
from lab.true_clocks import TrueClocks, restore_clocks

from .lab_runs import record

CLOCKS = {"P0": "-462ms,50ppm", "D0": "488ms,-50ppm"}
RATES = 100e-6
"""Lengths inside one clock change by what the clocks of these engines run apart, no more."""
ROUNDING_NS = 2_000
MOMENTS = 33
RUNS = Path("runs/wrong-clocks")
LOAD = ("--rate", "2", "--input-lens", "64,300,700", "--output-len", "8", "--seed", "11", "--requests")
LOADS = {
    "push": (*LOAD, "60"), "pull": (*LOAD, "60"),
    "bidirectional": (*LOAD, "20", "--rate", "0.7", "--turns", "3"),
}  # fmt: skip


@dataclass(frozen=True)
class PairFigures:
    """Of two clocks over the run: how often the true difference was inside, and how wide the interval was (ms)."""

    inside: int
    moments: int
    width_ms: float
    widest_ms: float
    true_ms: float


@dataclass(frozen=True)
class SegmentFigures:
    """Of one segment: requests, how many of them are off by more than published, and by how much they are (ms)."""

    name: str
    requests: int
    beyond: int
    worst_ms: float
    published_ms: float
    widest_ms: float
    true_median_ms: float
    found_median_ms: float


def open_breakdown(run: Path) -> Breakdown:
    """Break a run down."""
    with open_session([run]) as session:
        return break_down(session)


def open_clocks(run: Path) -> Aligned:
    """Put a run on one clock."""
    with open_session([run]) as session:
        return align_clocks(session)


def measure_pairs(run: Path) -> list[PairFigures]:
    """Hold the interval of every pair of clocks against the truth, from the first request to the last."""
    aligned, truth = open_clocks(run), TrueClocks(run)
    relation = aligned.relation
    assert relation is not None, "all processes are of one boot"
    own = aligned.routers["r_boot"][0]
    moments = [
        truth.find_moment(own, at)
        for at in np.linspace(aligned.routers["r_start"].min(), aligned.routers["r_end"].max(), MOMENTS)
    ]
    found = []
    for one, other in combinations(range(len(relation.names)), 2):
        first = np.array([truth.read(relation.names[one], at) - int(relation.zero[one]) for at in moments], float)
        second = np.array([truth.read(relation.names[other], at) - int(relation.zero[other]) for at in moments], float)
        places = (np.full(MOMENTS, place) for place in (one, other))
        low, high = relation.bound(*places, first)
        inside = (low <= second - first) & (second - first <= high)
        width = (high - low) / 1e6
        wall = (second - first)[MOMENTS // 2] + float(relation.zero[other] - relation.zero[one])
        found.append(PairFigures(int(inside.sum()), MOMENTS, float(np.median(width)), float(width.max()), wall / 1e6))
    return found


def measure_segments(found: Breakdown, true: Breakdown) -> list[SegmentFigures]:
    """Hold each request's segments against those of the same run put right by the truth."""
    both = true.budgets.join(found.budgets, on="request_id", suffix="_found")
    assert both.height == true.budgets.height == found.budgets.height, "requests differ"
    figures = []
    for name in SEGMENTS:
        rows = both.filter(pl.col(f"seg_{name}").is_not_null() | pl.col(f"seg_{name}_found").is_not_null())
        if rows.is_empty():
            continue
        published = rows[f"unc_{name}_found"].fill_null(0)
        # One that only one of the two has is off by all of it.
        error = (rows[f"seg_{name}_found"].fill_null(0) - rows[f"seg_{name}"].fill_null(0)).abs()
        beyond = error > published + RATES * rows["ttft"] + ROUNDING_NS
        middles = (rows[f"seg_{name}{side}"].median() or 0.0 for side in ("", "_found"))
        values = (error.max(), published.median(), published.max(), *middles)
        figures.append(SegmentFigures(name, rows.height, int(beyond.sum()), *(value / 1e6 for value in values)))
    return figures


def restore(run: Path) -> Path:
    """Copy a run with its clocks put right, beside it."""
    target = run.with_name(f"{run.name}-restored")
    shutil.rmtree(target, ignore_errors=True)
    return restore_clocks(run, target)


def print_figures(name: str, pairs: Sequence[PairFigures], segments: Sequence[SegmentFigures]) -> None:
    """Print one run's figures."""
    inside, moments = sum(pair.inside for pair in pairs), sum(pair.moments for pair in pairs)
    print(f"  {name}: truth inside at {inside} of {moments} moments of {len(pairs)} pairs of clocks")
    for pair in pairs:
        print(f"    truly {pair.true_ms:+9.3f} ms apart: width {pair.width_ms:.2f} ms, {pair.widest_ms:.2f} at most")
    for one in segments:
        print(
            f"    {one.name:17} error {one.worst_ms:7.3f} ms at most, published {one.published_ms:6.3f} (up to"
            f" {one.widest_ms:6.3f}), beyond it {one.beyond} of {one.requests}; median {one.found_median_ms:8.3f},"
            f" truly {one.true_median_ms:8.3f}"
        )


def print_beside(found: Breakdown, plain: Breakdown) -> None:
    """Print medians beside those of the run without wrong clocks: other requests, so noise is in them."""
    for name in ("ttft", *(f"seg_{name}" for name in SEGMENTS)):
        middles = [one.budgets[name].median() for one in (plain, found)]
        if all(value is not None for value in middles):
            on_one, apart = (value / 1e6 for value in middles)
            print(f"    {name.removeprefix('seg_'):17} median {apart:8.3f} ms, of a run on one host {on_one:8.3f}")


def run() -> None:
    """Record both runs of each mode, measure, print."""
    for mode in os.environ.get("KVLENS_CLOCKS_MODES", ",".join(LOADS)).split(","):
        wrong, plain = RUNS / f"{mode}-wrong", RUNS / f"{mode}-plain"
        options = [part for engine, clock in CLOCKS.items() for part in ("--clock", f"{engine}={clock}")]
        record(plain, ("--mode", mode, *LOADS[mode]))
        record(wrong, ("--mode", mode, *LOADS[mode], *options))
        found = open_breakdown(wrong)
        print_figures(mode, measure_pairs(wrong), measure_segments(found, open_breakdown(restore(wrong))))
        print_beside(found, open_breakdown(plain))

"""Budgets of two runs -> samples that may be compared: pairs of the same request, or strata of alike requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..segments import SEGMENTS
from ..summary import BUCKETS, NO_BUCKET

Floats = NDArray[np.float64]

TTFT, TPOT, RESIDUAL = "ttft", "tpot", "residual"
COLUMN_OF = {TTFT: "ttft", TPOT: "tpot_ns", **{name: f"seg_{name}" for name in SEGMENTS}, RESIDUAL: "residual"}

NS_PER_MS = 1e6
MIN_STRATUM = 3
"""A stratum with fewer requests than this on either side tells nothing about its spread."""
LOADS = ("low", "middle", "high")
MIN_WINDOW_NS = 1_000_000_000


@dataclass(frozen=True)
class Stratum:
    """Alike requests of both runs: a name, and each run's values in ms by metric, in order of arrival."""

    name: str
    a: dict[str, Floats]
    b: dict[str, Floats]

    @property
    def size(self) -> tuple[int, int]:
        """How many requests of each run are in it."""
        return len(self.a[TTFT]), len(self.b[TTFT])


@dataclass(frozen=True)
class Matched:
    """What is compared.

    paired: whether the i-th value of a and of b are of the same request (then there is one stratum).
    strata: at least MIN_STRATUM requests of each run in each, unless paired.
    left_out: requests of each run that found no partner.
    """

    paired: bool
    strata: tuple[Stratum, ...]
    left_out: tuple[int, int]

    def pool(self, metric: str) -> tuple[Floats, Floats]:
        """Values of a metric of all matched requests of each run."""
        if not self.strata:
            return np.empty(0), np.empty(0)
        return (
            np.concatenate([stratum.a[metric] for stratum in self.strata]),
            np.concatenate([stratum.b[metric] for stratum in self.strata]),
        )


def match_pairs(a: pl.DataFrame, b: pl.DataFrame) -> Matched:
    """Pair the n-th attempt of a request key in one run with the n-th of the other, if their prompts are as long."""
    keys = ["request_key", "nth", "prompt_tokens"]
    one, two = _number(a), _number(b)
    met = one.join(two, on=keys, how="inner", nulls_equal=True, suffix="_b").sort("ttft_start", "nth")
    partner = met.select(pl.exclude("^.*_b$"))
    other = met.select(pl.col(f"{name}_b").alias(name) for name in COLUMN_OF.values())
    stratum = Stratum("all", _take(partner), _take(other))
    return Matched(True, (stratum,), (a.height - met.height, b.height - met.height))


def _number(frame: pl.DataFrame) -> pl.DataFrame:
    nth = pl.col("ttft_start").rank("ordinal").over("request_key")
    return frame.filter(pl.col("request_key") != "").select(
        "request_key", "prompt_tokens", "ttft_start", *COLUMN_OF.values(), nth=nth
    )


def match_strata(a: pl.DataFrame, b: pl.DataFrame) -> Matched:
    """Group by prompt-length bucket and load; groups that one run hardly has are left out."""
    one, two = add_load(a, b)
    names = [f"{bucket} tokens, {load} load" for bucket in (*BUCKETS, NO_BUCKET) for load in LOADS]
    groups_a, groups_b = _partition(one), _partition(two)
    strata = [
        Stratum(name, _take(groups_a[name]), _take(groups_b[name]))
        for name in names
        if name in groups_a and name in groups_b and min(groups_a[name].height, groups_b[name].height) >= MIN_STRATUM
    ]
    kept = [sum(stratum.size[side] for stratum in strata) for side in (0, 1)]
    return Matched(False, tuple(strata), (a.height - kept[0], b.height - kept[1]))


def add_load(a: pl.DataFrame, b: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add load: the pooled third into which the number of arrivals just before each request falls.

    Arrivals are counted, not requests in flight: a slower connector has more in flight, and grouping by an effect
    would hide it. The window is the pooled p90 TTFT, at least a second, equal for both runs.
    """
    ttft = pl.concat([a["ttft"], b["ttft"]])
    window = max(int(ttft.quantile(0.9) or 0), MIN_WINDOW_NS)
    counts = [_count_before(frame["ttft_start"].to_numpy(), window) for frame in (a, b)]
    low, high = np.quantile(np.concatenate(counts), (1 / 3, 2 / 3)) if ttft.len() else (0, 0)
    labels = [[LOADS[int(count > low) + int(count > high)] for count in one] for one in counts]
    return a.with_columns(load=pl.Series(labels[0], dtype=pl.String)), b.with_columns(
        load=pl.Series(labels[1], dtype=pl.String)
    )


def _count_before(arrivals: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    ordered = np.sort(arrivals)
    return np.searchsorted(ordered, arrivals, "left") - np.searchsorted(ordered, arrivals - window, "left")


def _partition(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    named = frame.with_columns(stratum=pl.format("{} tokens, {} load", "bucket", "load")).sort("ttft_start")
    return {str(name): rows for (name,), rows in named.partition_by("stratum", as_dict=True).items()}


def _take(frame: pl.DataFrame) -> dict[str, Floats]:
    """Values in ms by metric; a segment that a request does not have took no time. TPOT may be unknown (NaN)."""
    return {
        metric: (
            (frame[column] / NS_PER_MS).cast(pl.Float64).fill_null(np.nan if metric == TPOT else 0.0).to_numpy()
        )
        for metric, column in COLUMN_OF.items()
    }  # fmt: skip

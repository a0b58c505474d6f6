"""How small a difference of means the measurement itself can tell apart, per metric in ms."""

from __future__ import annotations

import polars as pl

from ..segments import SEGMENTS

NS_PER_MS = 1e6

# The landing of a transfer, known only between two polls, is the border of these two.
AT_LANDING = ("wire", "completion_lag")


def find_resolutions(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, float]:
    """Find the worst case per segment: both runs' mean bounds, added, as if all errors of a run pointed one way.

    A segment's bound is the landing's uncertainty where the landing is one of its ends, and the clock disorder that
    was repaired. TTFT and TPOT are read from one clock each: they have none.
    """
    landing = _mean(a, "uncertainty_ns") + _mean(b, "uncertainty_ns")
    disorder = _mean(a, "disorder") + _mean(b, "disorder")
    return {name: disorder + (landing if name in AT_LANDING else 0.0) for name in SEGMENTS}


def _mean(frame: pl.DataFrame, column: str) -> float:
    return float(frame.select(pl.col(column).fill_null(0).mean().fill_null(0)).item()) / NS_PER_MS

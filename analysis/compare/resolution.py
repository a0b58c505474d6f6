"""How small a difference of means the measurement itself can tell apart, per metric in ms."""

from __future__ import annotations

import polars as pl

from ..segments import SEGMENTS

NS_PER_MS = 1e6


def find_resolutions(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, float]:
    """Find the worst case per segment: both runs' mean bounds, added, as if all errors of a run pointed one way.

    A segment's bound is its own uncertainty (the landing's where that is one of its ends, and that of the clocks where
    it lies between two), and the disorder that was repaired. TTFT and TPOT are read from one clock: they have none.
    """
    disorder = _mean(a, "disorder") + _mean(b, "disorder")
    return {name: disorder + _mean(a, f"unc_{name}") + _mean(b, f"unc_{name}") for name in SEGMENTS}


def _mean(frame: pl.DataFrame, column: str) -> float:
    if column not in frame.columns:
        return 0.0
    return float(frame.select(pl.col(column).fill_null(0).mean().fill_null(0)).item()) / NS_PER_MS

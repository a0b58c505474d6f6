"""Time spent in handshakes inside an interval, from the cumulated handshake time of an engine with a peer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl


def measure_handshakes(
    frame: pl.DataFrame, handshakes: pl.DataFrame, sides: tuple[str, str, str], begin: pl.Expr, finish: pl.Expr
) -> pl.Series:
    """Measure the handshake time (ns) of an engine with a peer on a rank inside [begin, finish]; 0 where unknown.

    frame: has the three columns of sides: engine, peer, rank. handshakes: rows of sql/handshakes.sql. Two look-ups in
    the cumulated handshake time per row, so that a storm of handshakes does not cost its square; and none for rows
    during which nobody shook hands, which are nearly all.
    """
    keys = zip(sides, ("engine", "peer", "rank"), strict=True)
    intervals = frame.select(begin=begin, finish=finish, **{theirs: pl.col(ours) for ours, theirs in keys})
    near = intervals.with_row_index("row").filter(pl.Series(_touch_any(intervals, handshakes)))
    spent = np.zeros(frame.height, dtype=np.int64)
    inside = _cumulate(near, handshakes, "finish") - _cumulate(near, handshakes, "begin")
    spent[near["row"].to_numpy()] = inside.fill_null(0).clip(lower_bound=0).to_numpy()
    return pl.Series(spent)


def _touch_any(intervals: pl.DataFrame, handshakes: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether any engine shook hands with any other during each interval."""
    ordered = handshakes.sort("begin")
    latest = np.concatenate([[np.iinfo(np.int64).min], ordered["finish"].cum_max().to_numpy()])
    begin, finish = (intervals[name].fill_null(-1).to_numpy() for name in ("begin", "finish"))
    touches: npt.NDArray[np.bool_] = latest[np.searchsorted(ordered["begin"].to_numpy(), finish, side="right")] >= begin
    return touches


def _cumulate(near: pl.DataFrame, handshakes: pl.DataFrame, at: str) -> pl.Series:
    """Cumulated handshake time (ns) before `at`; NULL where `at` is."""
    by: Sequence[str] = ("engine", "peer", "rank")
    points = near.select("row", *by, at=at)
    met = (
        points.drop_nulls("at")
        .sort("at")
        .join_asof(handshakes.sort("begin"), left_on="at", right_on="begin", by=by, check_sortedness=False)
    )
    spent = pl.col("before_ns") + pl.min_horizontal("at", "finish") - pl.col("begin")
    found = met.select("row", spent=spent.fill_null(0))
    return points.select("row").join(found, on="row", how="left", maintain_order="left")["spent"]

"""Time spent in handshakes inside an interval, from the cumulated handshake time of an engine with a peer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def measure_handshakes(
    frame: pl.DataFrame, handshakes: pl.DataFrame, sides: tuple[str, str, str], begin: pl.Expr, finish: pl.Expr
) -> pl.Series:
    """Measure the handshake time (ns) of an engine with a peer on a rank inside [begin, finish]; 0 where unknown.

    frame: has row (unique) and the three columns of sides: engine, peer, rank. handshakes: rows of sql/handshakes.sql.
    Two look-ups in the cumulated handshake time per row, so that a storm of handshakes does not cost its square.
    """
    inside = _cumulate(frame, handshakes, sides, finish) - _cumulate(frame, handshakes, sides, begin)
    return inside.fill_null(0).clip(lower_bound=0)


def _cumulate(frame: pl.DataFrame, handshakes: pl.DataFrame, sides: Sequence[str], at: pl.Expr) -> pl.Series:
    """Cumulated handshake time (ns) before `at`; NULL where `at` is."""
    keys = dict(zip(sides, ("engine", "peer", "rank"), strict=True))
    points = frame.select("row", at=at, **{theirs: pl.col(ours) for ours, theirs in keys.items()})
    met = (
        points.drop_nulls("at")
        .sort("at")
        .join_asof(
            handshakes.sort("begin"), left_on="at", right_on="begin", by=list(keys.values()), check_sortedness=False
        )
    )
    spent = pl.col("before_ns") + pl.min_horizontal("at", "finish") - pl.col("begin")
    found = met.select("row", spent=spent.fill_null(0))
    return points.select("row").join(found, on="row", how="left", maintain_order="left")["spent"]

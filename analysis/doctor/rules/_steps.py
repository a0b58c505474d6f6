"""Time that slow steps took beyond their bound, by engine."""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..thresholds import MIN_GROUP

STOLEN = 0.01
"""Share of an engine's time: what kvlens itself may cost at most, so less is not worth a change."""


def add_excess(facts: Facts) -> pl.DataFrame:
    """`step.slow` spans with took_ns and excess_ns (beyond the bound of that time)."""
    took = pl.col("finish") - pl.col("begin")
    return facts.spans("step.slow").with_columns(
        took_ns=took, excess_ns=(took - pl.col("bound_ns").fill_null(0)).clip(lower_bound=0)
    )


def stolen_time(slow: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Engines (engine, share) whose slow steps of these causes take at least STOLEN of their time, the worst first."""
    active = facts.evidence.group_by("engine").agg(active_ns=pl.col("finish").max() - pl.col("begin").min())
    return (
        slow.group_by("engine")
        .agg(count=pl.len(), excess_ns=pl.col("excess_ns").sum())
        .join(active, on="engine")
        .with_columns(share=pl.col("excess_ns") / pl.col("active_ns"))
        .filter((pl.col("share") >= STOLEN) & (pl.col("count") >= MIN_GROUP))
        .sort("share", descending=True)
    )

"""Rates between engines, from transfers that are large enough to have one."""

from __future__ import annotations

import polars as pl

from ..thresholds import LARGE_BYTES, MIN_GROUP


def list_routes(wires: pl.DataFrame) -> pl.DataFrame:
    """Median rates (GB/s) by source and target engine of the bytes: source, target, rate, at_most, count, excess_ns.

    A read moves bytes from the peer to the engine that posts it, a write the other way. When a transfer landed is known
    between two polls: rate is what it had at least, at_most what it can have had (without end when the first poll found
    it done). So a route is slow when at_most is low. excess_ns is the median time of these transfers: what a rate that
    is many times higher would save.
    """
    reads = pl.col("direction") == "READ"
    took = pl.coalesce("landed_before", "finish") - pl.col("begin")
    least = (pl.coalesce("landed_after", "landed_before", "finish") - pl.col("begin")).clip(lower_bound=0)
    return (
        wires.filter(
            pl.col("outcome").is_in(["ok", ""]), pl.col("bytes") >= LARGE_BYTES, pl.col("peer") != "", took > 0
        )
        .with_columns(
            source=pl.when(reads).then("peer").otherwise("engine"),
            target=pl.when(reads).then("engine").otherwise("peer"),
            took=took,
            least=least,
        )
        .group_by("source", "target")
        .agg(
            rate=(pl.col("bytes") / pl.col("took")).median(),
            at_most=(pl.col("bytes") / pl.col("least")).median(),
            count=pl.len(),
            excess_ns=pl.col("took").median(),
        )
        .filter(pl.col("count") >= MIN_GROUP)
        .sort("source", "target")
    )

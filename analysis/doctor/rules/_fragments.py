"""Which transfers needed far more descriptors per byte than the run's best."""

from __future__ import annotations

import polars as pl

from ..thresholds import FRAGMENTED


def split_by_fragments(known: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split requests with bytes and descriptors into fragmented ones and the others; adds per_byte to both.

    The run's best tenth stands for a cache whose blocks are in order. Small transfers need more per byte by nature
    (each layer has at least one), so a fragmented one also needs more descriptors than the typical transfer.
    """
    rated = known.with_columns(per_byte=pl.col("descriptors") / pl.col("bytes"))
    best = rated["per_byte"].quantile(0.1, "lower")
    if best is None:
        return rated, rated
    test = (pl.col("per_byte") >= FRAGMENTED * best) & (pl.col("descriptors") > pl.col("descriptors").median())
    return rated.filter(test), rated.filter(~test)

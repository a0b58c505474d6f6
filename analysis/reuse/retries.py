"""Prefill attempts that failed and were repeated by the router: folded into the attempt that served the request.

A readback that fails or is declined fails the whole request on the prefill engine (vLLM's `kv_load_failure_policy`
fail), and a router sends it there once more without the offer. That is one request of the client with two on P.
"""

from __future__ import annotations

import polars as pl

FAILED = ("finished_error", "finished_aborted")
IDENTITY = ("p_trace", "p_key")


def fold_retries(engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Drop failed attempts of requests that were tried again, and note on the next attempt when the first began.

    engines: rows of sql/milestones.sql. routers: rows of sql/routers.sql. An attempt is folded only where more attempts
    than router requests have its identity: a client that uses an id again is no retry. Adds tries (folded attempts),
    tried_id and tried_start (ns) of the first of them.
    """
    ordered = engines.sort("p_start", nulls_last=True, maintain_order=True)
    asked = routers.group_by(p_trace="r_trace", p_key="r_key").agg(asked=pl.len())
    counted = ordered.with_row_index("place").join(asked, on=list(IDENTITY), how="left", maintain_order="left")
    known = pl.all_horizontal(pl.col(name).is_not_null() & (pl.col(name) != "") for name in IDENTITY)
    failed = known & pl.col("d_id").is_null() & pl.col("p_finish").is_in(FAILED) & pl.col("p_start").is_not_null()
    again = known & pl.col("asked").is_not_null() & (pl.col("p_id").count().over(IDENTITY) > pl.col("asked"))
    followed = pl.col("place") < pl.col("place").max().over(IDENTITY)
    marked = counted.with_columns(folds=(failed & again & followed).fill_null(value=False))
    # The number of attempts that served, so far: a folded one belongs to the next of them.
    serves = (~pl.col("folds")).cast(pl.Int64)
    group = pl.when(known).then(serves.cum_sum().over(IDENTITY) - serves).otherwise(pl.col("place").cast(pl.Int64))
    marked = marked.with_columns(group=group)
    tried = marked.filter("folds").group_by(*IDENTITY, "group", maintain_order=True).agg(
        tries=pl.len().cast(pl.Int64), tried_id=pl.col("p_id").first(), tried_start=pl.col("p_start").first()
    )  # fmt: skip
    kept = marked.filter(~pl.col("folds")).join(tried, on=[*IDENTITY, "group"], how="left", maintain_order="left")
    return kept.drop("place", "asked", "folds", "group")

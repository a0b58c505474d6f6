"""One tensor-parallel rank lands much later than the others, and the request waits for it.

Finding: between the first and the last rank's landing lie at least 20 % of the TTFT and 20 ms, in 10 % of the
requests with several ranks.

Remedy: the placement of that rank.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import MATERIAL, MATERIAL_MS, NS_PER_MS
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Requests that waited for their slowest rank."""
    ranks = (
        facts.spans("wire")
        .filter(pl.col("outcome").is_in(["ok", ""]))
        .group_by("engine", "id", "rank")
        .agg(landed=pl.coalesce("landed_before", "finish").max())
        .group_by("engine", "id")
        .agg(
            ranks=pl.len(),
            skew_ns=pl.col("landed").max() - pl.col("landed").min(),
            slowest=pl.col("rank").sort_by("landed").last(),
        )
        .filter(pl.col("ranks") > 1)
    )
    own = pl.when(pl.col("mode") == "push").then(pl.col("p_id")).otherwise(pl.col("d_id"))
    joined = facts.budgets.with_columns(own=own).join(ranks, left_on=["x_engine", "own"], right_on=["engine", "id"])
    skewed = joined.filter(
        (pl.col("skew_ns") >= MATERIAL * pl.col("ttft")) & (pl.col("skew_ns") >= MATERIAL_MS * NS_PER_MS)
    ).sort("skew_ns", descending=True)
    if not is_common(skewed.height, joined.height):
        return None
    slowest = skewed["slowest"].mode().sort()[0]
    return RULE.find(
        f"rank {slowest} lands last in {skewed.height} of {joined.height} requests with several ranks",
        skewed.with_columns(ttft_ns=pl.col("ttft")),
        joined.height,
        columns=("request_id", "slowest", "skew_ns", "ttft_ns"),
        cost=skewed["skew_ns"],
    )


RULE = Rule(
    "rank-skew",
    WARNING,
    "compare the slow rank's NIC, NUMA node and core with the others'; each rank should use the NIC beside its GPU",
    check,
    cases=(),
)

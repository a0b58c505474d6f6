"""Requests aborted while their KV was on its way leave D's blocks held (push).

D cannot take its blocks back from P's write, so they stay until the write has come; when P never writes (aborted as
well), they stay for good. The gauge is `kvlens_held_blocks{reason="aborted_receive"}`.

Finding: a push request ended as aborted after D had allocated its blocks and before its KV had arrived. One is
enough: each is a leak.

Remedy: let P finish the writes, restart D when the gauge grows.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Pushes aborted between allocation and arrival."""
    pushes = facts.requests.filter((pl.col("mode") == "push") & pl.col("d_id").is_not_null())
    aborted = pushes.filter(
        pl.col("d_finish").str.contains("abort").fill_null(value=False),
        pl.col("d_alloc").is_not_null() & pl.col("d_told").is_null(),
    ).with_columns(waited_ns=pl.col("d_end") - pl.col("d_alloc"))
    if aborted.is_empty():
        return None
    return RULE.find(
        f"{aborted.height} requests were aborted while decode waited for their KV: its blocks stay held",
        aborted.sort("waited_ns", descending=True),
        pushes.height,
        columns=("request_id", "d_id", "waited_ns"),
    )


RULE = Rule(
    "aborted-holds-blocks",
    WARNING,
    'watch kvlens_held_blocks{reason="aborted_receive"}; restart the decode engine when it grows; prefer '
    "pull where clients cancel often",
    check,
    cases=(7,),
)

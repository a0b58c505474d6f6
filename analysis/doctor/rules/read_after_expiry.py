"""Blocks were read after their lease had ended: the answer may be made of another request's KV.

Symptom: requests answered from blocks already freed, all with HTTP 200. P frees blocks when the lease ends (30 s,
renewed by D's heartbeats); NIXL lets D read them all the same.

Finding: one such request is enough: the lease ended as `expired`, and a read of that request landed later.

Remedy: a longer lease, shorter queues at D.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Reads that landed after the lease of their blocks had expired."""
    expired = facts.spans("lease").filter(pl.col("outcome") == "expired").select(p_id="id", lease_end="finish")
    reads = facts.spans("wire").filter(pl.col("direction") == "READ")
    late = (
        reads.join(expired, left_on="peer_id", right_on="p_id")
        .with_columns(late_by_ns=pl.coalesce("landed_before", "finish") - pl.col("lease_end"))
        .filter(pl.col("late_by_ns") > 0)
        .sort("late_by_ns", descending=True)
        .unique("id", keep="first", maintain_order=True)
    )
    if late.is_empty():
        return None
    return RULE.find(
        f"{late.height} requests read blocks whose lease had expired: their answers may be wrong",
        late.with_columns(request=pl.col("key"), prefill_request=pl.col("peer_id")),
        reads.n_unique("id"),
        columns=("request", "prefill_request", "late_by_ns"),
    )


RULE = Rule(
    "read-after-expiry",
    ERROR,
    "raise kv_connector_extra_config.kv_lease_duration (30 s) above the longest wait at the decode "
    "engine, or keep that wait short",
    check,
    cases=(4,),
)

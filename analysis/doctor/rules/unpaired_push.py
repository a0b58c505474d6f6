"""P dropped a finished prompt that no registration matched, while D waits for it (push).

vLLM pairs the two legs by the request id (less its random suffix), so both legs need the same `X-Request-Id`. A
registration that comes after the lease has ended pairs with nothing: D waits for its client's time-out.

Finding: one pairing that ended unpaired although D had allocated blocks and was never told.

Remedy: equal ids on both legs; a lease longer than D's admission.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Dropped pairings whose request D waits for."""
    pairings = facts.spans("pairing")
    dropped = pairings.filter(pl.col("outcome") == "unpaired").unique("id", maintain_order=True)
    failed = facts.spans("failure")["key"].unique()
    waiting = facts.requests.filter(
        pl.col("d_alloc").is_not_null() & pl.col("d_told").is_null() & ~pl.col("request_key").is_in(failed.implode())
    )
    lost = dropped.join(waiting, left_on="id", right_on="p_id").with_columns(
        waited_ns=pl.col("finish") - pl.col("begin")
    )
    if lost.is_empty():
        return None
    return RULE.find(
        f"{lost.height} finished prompts were dropped without a registration while decode waits",
        lost.sort("waited_ns", descending=True),
        pairings.n_unique("id"),
        columns=("request_id", "d_id", "waited_ns"),
    )


RULE = Rule(
    "unpaired-push",
    ERROR,
    "look for why the registration did not come: decode's log, push_reg_* failures; equal X-Request-Id on"
    " both legs; kv_lease_duration above the longest admission wait",
    check,
    cases=(6, 8),
)

"""Blocks are read when their lease is almost over: the next slow moment makes it `read-after-expiry`.

D renews leases by heartbeats every sixth of the duration, for two thirds of it. A lease that is older than two
thirds and was never renewed is read by luck.

Finding: at least three leases, and one in ten, were older than two thirds of `kv_lease_duration` when they were
read or sent, without a heartbeat.

Remedy: a longer lease, a shorter wait at D.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import LEASE_S, LEASE_USED, NS_PER_S
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Leases that were old and not renewed when they ended well."""
    limit = LEASE_USED * facts.setting("kv_lease_duration", LEASE_S) * NS_PER_S
    ended = facts.spans("lease").filter(pl.col("outcome").is_in(["read", "sent"]) & (pl.col("role") != "decode"))
    old = ended.with_columns(held_ns=pl.col("finish") - pl.col("begin")).filter(
        (pl.col("held_ns") >= limit) & (pl.col("heartbeats").fill_null(0) == 0)
    )
    if not is_common(old.height, ended.height):
        return None
    return RULE.find(
        f"{old.height} leases were nearly over when their blocks were read",
        old.sort("held_ns", descending=True).with_columns(request=pl.col("key")),
        ended.height,
        columns=("request", "held_ns", "blocks", "outcome"),
    )


RULE = Rule(
    "lease-near-its-end",
    WARNING,
    "raise kv_connector_extra_config.kv_lease_duration, or shorten the wait at decode before it begins to"
    " read (admission, queue)",
    check,
    cases=(4,),
)

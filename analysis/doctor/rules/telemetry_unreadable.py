"""NIXL's telemetry cannot be read after good transfers.

vLLM calls `get_xfer_telemetry` inside the block that fails the transfer, so an error there fails a request whose
bytes have arrived. kvlens answers with empty figures instead and counts it.

Finding: at least three transfers, and one in ten, ended well and have no byte count.

Remedy: a NIXL whose telemetry works; without byte counts no rates are known.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import INFO, Finding, Rule
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Good transfers without figures."""
    good = facts.spans("wire").filter(pl.col("outcome").is_in(["ok", "unknown", ""]))
    blind = good.filter(pl.col("bytes").is_null() & pl.col("nixl_xfer_us").is_null())
    if not is_common(blind.height, good.height):
        return None
    return RULE.find(
        f"{blind.height} of {good.height} transfers have no telemetry",
        blind.with_columns(request=pl.col("key")),
        good.height,
        columns=("request", "engine", "rank", "direction"),
    )


RULE = Rule(
    "telemetry-unreadable",
    INFO,
    "update NIXL (1.5 or later); kvlens guards the call, stock vLLM fails the transfer when it raises",
    check,
    cases=(12,),
)

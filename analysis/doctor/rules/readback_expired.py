"""The next turn of a conversation came after D had given the blocks up: it is computed again (bidirectional).

D keeps a conversation's blocks for `decoder_kv_blocks_ttl` seconds, which are not renewed, and vLLM's reader declines
blocks that expire within five more.

Finding: at least three turns, and one in ten of those that were offered blocks, were declined because the retention had
ended or nearly so. The title says how much longer it would have had to be for nine in ten of them.

Remedy: a longer retention, if D's cache has room for it (`kvlens leases RUN` prints what it costs).
"""

from __future__ import annotations

import polars as pl

from ...reuse.retention import MARGIN_S
from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Decisions against a readback because it came too late."""
    offered = facts.decisions.filter(pl.col("peer_id") != "")
    late = offered.filter(pl.col("reason") == "expired").with_columns(
        seconds_late=(MARGIN_S - pl.col("seconds_to_expiry")).clip(lower_bound=0)
    )
    if not is_common(late.height, offered.height):
        return None
    known = late["seconds_late"].drop_nulls()
    longer = f"; {float(known.quantile(0.9) or 0.0):.1f} s more would have kept nine in ten" if known.len() else ""
    return RULE.find(
        f"{late.height} of {offered.height} turns came after the decoder's retention had ended{longer}",
        late.sort("seconds_late", descending=True, nulls_last=True).with_columns(request=pl.col("key")),
        offered.height,
        columns=("request", "fetch_tokens", "seconds_late"),
        cost=late.select(pl.col("recompute_estimate_ns") - pl.col("fetch_estimate_ns")).to_series().clip(lower_bound=0),
    )


RULE = Rule(
    "readback-expired",
    WARNING,
    "raise kv_connector_extra_config.decoder_kv_blocks_ttl (480 s) above the time between turns, as far "
    "as the decode engine's KV cache allows: kvlens leases RUN has the retention curve",
    check,
    cases=(5,),
)

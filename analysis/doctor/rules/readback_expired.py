"""The next turn of a conversation came after D had given the blocks up: it is computed again (bidirectional).

D keeps a conversation's blocks for `decoder_kv_blocks_ttl` seconds, which are not renewed.

Finding: at least three decisions, and one in ten, were declined because the retention had ended; the evidence says
by how many seconds.

Remedy: a longer retention, if D's cache has room for it. (Needs the decision spans of a bidirectional run.)
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Decisions against a readback because it came too late."""
    decisions = facts.spans("decision")
    late = decisions.filter(pl.col("reason").str.contains("(?i)expired|ttl|retention"))
    if not is_common(late.height, decisions.height):
        return None
    return RULE.find(
        f"{late.height} of {decisions.height} turns came after the decoder's retention had ended",
        late.sort("seconds_past_expiry", descending=True, nulls_last=True).with_columns(request=pl.col("key")),
        decisions.height,
        columns=("request", "reason", "seconds_past_expiry"),
    )


RULE = Rule(
    "readback-expired",
    WARNING,
    "raise kv_connector_extra_config.decoder_kv_blocks_ttl (480 s) above the time between turns, as far "
    "as the decode engine's KV cache allows",
    check,
    cases=(5,),
)

"""Transfer parameters that cannot be true: blocks of nobody or offered twice, an expiry before all time, a clock jump.

Such parameters come from a router that mixes conversations up, keeps them across an engine's restart, or from a clock
that was set. Blocks that were read or declined once have been freed since: offered again, they may be somebody else's.
vLLM does not check most of this: a read of other blocks succeeds, and the answer is made of them.

Finding: one `validation` event with the reason `foreign_engine`, `block_id_out_of_range`, `negative_expiry`,
`stale_offer` or `clock_jump`.

Remedy: forget a conversation's parameters when its decode engine restarts, offer each turn's parameters once, and pass
them on untouched.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule

REASONS = ("foreign_engine", "block_id_out_of_range", "negative_expiry", "stale_offer", "clock_jump")


def check(facts: Facts) -> Finding | None:
    """Requests whose parameters speak of blocks that cannot be theirs."""
    wrong = facts.validations.filter(pl.col("reason").is_in(REASONS)).unique("id", keep="first", maintain_order=True)
    if wrong.is_empty():
        return None
    kinds = ", ".join(f"{count} {name}" for name, count in wrong["reason"].value_counts(sort=True).iter_rows())
    return RULE.find(
        f"{wrong.height} requests carried transfer parameters that cannot be true ({kinds})",
        wrong.with_columns(request=pl.col("key")),
        max(facts.requests.height, wrong.height),
        columns=("request", "engine", "reason", "field"),
    )


RULE = Rule(
    "foreign-parameters",
    ERROR,
    "the router must forget a conversation's kv_transfer_params when its decode engine restarts, offer those of each "
    "turn once, and pass them on unchanged, to the same model and block size",
    check,
)

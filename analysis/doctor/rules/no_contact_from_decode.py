"""The prompt was done and D never asked: it refused the request before admission, and P holds its blocks until the
lease ends.

Finding: the router sent the decode leg and it failed (without a router: nothing says that it was sent), no span of
D knows the request, nothing was read or written, and P's lease ran out or was still open at the end.

Remedy: the reason of the refusal is in D's log and in the router's span.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._ledger import join_leases


def check(facts: Facts) -> Finding | None:
    """Prefilled requests that D never knew."""
    held = join_leases(facts)
    sent = pl.col("r_start").is_null() | (pl.col("r_decode_start").is_not_null() & (pl.col("r_status") == "error"))
    lost = held.filter(
        pl.col("d_id").is_null() & ~pl.col("touched") & sent.fill_null(value=False),
        (pl.col("outcome") == "expired")
        | (pl.col("outcome").is_in(["unknown", "released"]) & (pl.col("r_status") == "error")),
    ).sort("held_ns", descending=True)
    if lost.is_empty():
        return None
    blocks = int(lost["blocks"].fill_null(0).sum())
    return RULE.find(
        f"{lost.height} prefilled requests never reached decode; {blocks} blocks were held for them",
        lost,
        held.height,
        columns=("request_id", "held_ns", "blocks", "outcome", "r_error"),
    )


RULE = Rule(
    "no-contact-from-decode",
    WARNING,
    "make the router tell the prefill engine when the decode leg fails (abort the prefill request), and "
    "find why decode refused (its log); a shorter kv_lease_duration limits the loss",
    check,
    cases=(8,),
)

"""The client cancelled, P counts the request as done and keeps its blocks.

A cancellation that arrives in the last step of a prompt comes too late: P's finish reason is an ordinary one, the
blocks wait for a reader that never comes, and P's cache fills.

Finding: at least three requests whose client was gone before the decode leg was sent, which P finished ordinarily
and kept blocks for.

Remedy: cancel upstream at once; the lease limits the loss.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import FEW
from ._ledger import join_leases


def check(facts: Facts) -> Finding | None:
    """Cancelled requests that P finished and keeps."""
    gone = pl.col("r_error").str.contains("(?i)cancel|disconnect").fill_null(value=False)
    held = join_leases(facts)
    done = held.filter(
        gone & pl.col("d_id").is_null() & pl.col("r_decode_start").is_null() & ~pl.col("touched"),
        pl.col("p_finish").is_in(["finished_stopped", "finished_length_capped"]),
    ).sort("held_ns", descending=True)
    if done.height < FEW:
        return None
    return RULE.find(
        f"{done.height} cancelled requests were prefilled to the end and their blocks kept",
        done,
        held.height,
        columns=("request_id", "p_finish", "held_ns", "blocks", "outcome"),
    )


RULE = Rule(
    "cancelled-counts-as-done",
    WARNING,
    "abort the prefill request when its client has gone: close the router's connection to prefill at "
    "once; a shorter kv_lease_duration frees the blocks sooner",
    check,
    cases=(16,),
)

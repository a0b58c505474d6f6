"""The transfer parameters were lost on the way: D silently computes the prompt again.

Finding: the client got its answer, P had kept the blocks for it, D's spans know nothing of a hand-over, and P still
held the blocks when the first token was out. (The metric is `kvlens_expected_remote_missing_total`.)

Remedy: the router, or a proxy that rewrites the body.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._ledger import join_leases


def check(facts: Facts) -> Finding | None:
    """Answered requests whose KV nobody fetched."""
    if not facts.health.get("decode_spans"):
        return None  # a decode engine without kvlens says nothing of any request
    held = join_leases(facts)
    again = held.filter(
        pl.col("d_id").is_null() & ~pl.col("touched") & (pl.col("r_status") == "ok"),
        pl.col("lease_end") > pl.col("r_first_byte"),
    ).with_columns(wait_ns=pl.col("r_first_byte") - pl.col("p_end"))
    if again.is_empty():
        return None
    return RULE.find(
        f"{again.height} requests were prefilled twice: decode did not know that their KV was there",
        again.sort("wait_ns", descending=True),
        held.height,
        columns=("request_id", "prompt_tokens", "wait_ns", "blocks"),
        cost=again["wait_ns"],
    )


RULE = Rule(
    "expected-remote-missing",
    WARNING,
    "the router must pass prefill's kv_transfer_params to decode unchanged and whole (remote_engine_id, "
    "remote_request_id, remote_block_ids, remote_host, remote_port)",
    check,
    cases=(10,),
)

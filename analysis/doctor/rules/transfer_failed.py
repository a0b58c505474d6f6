"""Transfers failed: the request is computed again or fails, by `kv_load_failure_policy`.

Finding: one transfer that ended in an error, a failed set-up of a read, or a load that the scheduler was told had
failed.

Remedy: the transport's error in the log; a peer that restarted has new agents and addresses.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule

FAILURES = ("transfer_failed", "transfer_exception", "transfer_release_failed")


def check(facts: Facts) -> Finding | None:
    """Requests with a failed transfer."""
    wires = facts.spans("wire").filter(pl.col("outcome") == "error")
    failures = facts.spans("failure").filter(
        pl.col("failure_type").is_in(FAILURES)
        | ((pl.col("failure_type") == "transfer_setup_failed") & (pl.col("mode") != "push"))
    )
    failed = pl.concat([failures, wires]).unique("id", keep="first", maintain_order=True)
    told = facts.requests.filter(pl.col("wait_outcome") == "failed")
    if failed.is_empty() and told.is_empty():
        return None
    if failed.is_empty():
        return RULE.find(f"{told.height} loads failed", told, facts.requests.height, columns=("request_id", "d_id"))
    return RULE.find(
        f"transfers of {failed.height} requests failed",
        failed.with_columns(request=pl.col("key")),
        facts.requests.height,
        columns=("request", "failure_type", "error_type", "peer", "direction"),
    )


RULE = Rule(
    "transfer-failed",
    ERROR,
    "look at both engines' logs for the NIXL error, at the link (kvlens efa-exporter) and at whether the "
    "peer was restarted",
    check,
    cases=(6,),
)

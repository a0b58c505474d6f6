"""A NIXL notification could not be sent.

A lost completion makes P hold blocks until the lease ends; a lost registration (`push_reg_notif_failed`,
`push_reg_handshake_failed`) means that P never writes, and D waits.

Finding: one failure of these types.

Remedy: the connection between the two agents.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule

FAILURES = ("notification_failed", "push_reg_notif_failed", "push_reg_handshake_failed", "push_handshake_failed")


def check(facts: Facts) -> Finding | None:
    """Requests whose notification was not sent."""
    failed = facts.spans("failure").filter(pl.col("failure_type").is_in(FAILURES)).unique("id", maintain_order=True)
    if failed.is_empty():
        return None
    return RULE.find(
        f"notifications of {failed.height} requests could not be sent",
        failed.with_columns(request=pl.col("key")),
        facts.requests.height,
        columns=("request", "failure_type", "error_type", "peer"),
    )


RULE = Rule(
    "notification-failed",
    ERROR,
    "check that both engines' agents can still reach each other (restarted peer, network policy); until "
    "then blocks are freed by lease only",
    check,
    cases=(),
)

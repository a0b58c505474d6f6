"""Events of one request are in an impossible order: the clocks of two hosts differ.

Segments that cross hosts are then off by the same amount; the budget moves such milestones just as far as needed
and keeps the move in `disorder`.

Finding: in at least three requests, and one in ten, a milestone had to be moved by more than 5 ms.

Remedy: synchronise the clocks.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import CLOCK_NS
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Requests whose order of events had to be repaired."""
    moved = facts.budgets.filter(pl.col("disorder") >= CLOCK_NS).sort("disorder", descending=True)
    if not is_common(moved.height, facts.budgets.height):
        return None
    middle = float(moved["disorder"].median()) / 1e6  # type: ignore[arg-type]
    return RULE.find(
        f"events of {moved.height} requests contradict their order, by {middle:.1f} ms at the median",
        moved.with_columns(disorder_ns=pl.col("disorder"), hosts=pl.col("boots").list.len()),
        facts.budgets.height,
        columns=("request_id", "disorder_ns", "hosts", "p_engine", "d_engine"),
    )


RULE = Rule(
    "clocks-disagree",
    WARNING,
    "synchronise the hosts' clocks (chronyc tracking; on AWS the Amazon Time Sync PTP device); until then"
    " trust durations, not waits between hosts",
    check,
    cases=(),
)

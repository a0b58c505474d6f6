"""Events of one request are in an impossible order: the clocks of two hosts differ.

The budget puts all hosts on one clock by the messages between them (docs/clocks.md), so its segments are right within
their uncertainty; logs, metrics and every other tool that reads these hosts' clocks are off. What cannot be corrected
is moved just as far as needed, and the move is kept in `disorder`.

Finding: in at least three requests, and one in ten, the clocks of the request's hosts surely differ by more than 5 ms,
or a milestone had to be moved by more than that.

Remedy: synchronise the clocks.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import CLOCK_NS
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Requests whose hosts' clocks differ, or whose order of events had to be repaired."""
    off = facts.budgets.with_columns(clocks_apart_ns=pl.max_horizontal("disorder", "clocks_apart"))
    moved = off.filter(pl.col("clocks_apart_ns") >= CLOCK_NS).sort("clocks_apart_ns", descending=True)
    if not is_common(moved.height, facts.budgets.height):
        return None
    middle = float(moved["clocks_apart_ns"].median()) / 1e6  # type: ignore[arg-type]
    return RULE.find(
        f"clocks of hosts differ in {moved.height} requests, by at least {middle:.1f} ms at the median",
        moved.with_columns(disorder_ns=pl.col("disorder"), hosts=count_boots()),
        facts.budgets.height,
        columns=("request_id", "clocks_apart_ns", "disorder_ns", "hosts", "p_engine", "d_engine"),
    )


def count_boots() -> pl.Expr:
    """Count the boots that a request's engines are known to have run on."""
    boots = pl.concat_list(pl.when(pl.col(name) != "").then(pl.col(name)) for name in ("p_boot", "d_boot"))
    return boots.list.drop_nulls().list.n_unique()


RULE = Rule(
    "clocks-disagree",
    WARNING,
    "synchronise the hosts' clocks (chronyc tracking; on AWS the Amazon Time Sync PTP device); until then"
    " trust kvlens' corrected segments, not times of different hosts in logs and metrics",
    check,
    cases=(),
)

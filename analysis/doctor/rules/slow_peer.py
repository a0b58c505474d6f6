"""One pair of engines is much slower than the others: a NIC, a cable, a NUMA mistake.

Finding: among three or more routes between engines one has, at most that the polls allow, a third or less of the median
rate of the routes, each over at least five transfers of 1 MiB or more.

Remedy: what differs on that host.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import FACTOR
from ._rates import list_routes


def check(facts: Facts) -> Finding | None:
    """Routes that are slower than the others."""
    routes = list_routes(facts.spans("wire"))
    if routes.height < 3:
        return None
    typical = float(routes["rate"].median())  # type: ignore[arg-type]
    slow = routes.filter(pl.col("at_most") * FACTOR <= typical).with_columns(gb_per_s=pl.col("at_most")).sort("at_most")
    if slow.is_empty():
        return None
    worst = slow.row(0, named=True)
    return RULE.find(
        f"{worst['source']} to {worst['target']} moves {worst['at_most']:.2f} GB/s at most, "
        f"the typical route {typical:.2f} GB/s",
        slow,
        routes.height,
        columns=("source", "target", "gb_per_s", "count"),
        cost=slow["excess_ns"],
    )


RULE = Rule(
    "slow-peer",
    WARNING,
    "compare this engine's NIC, NUMA placement and route with the others'; kvlens efa-exporter shows its "
    "device's counters",
    check,
    cases=(3,),
)

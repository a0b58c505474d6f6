"""One direction between two engines is much slower than the other: it has fallen back to TCP.

Symptom: pull moves 0.5 GB/s where push moves 49 GB/s on the same pair. Reads and writes can take different
transports.

Finding: between the same two engines the median of the highest rates that the polls allow in one direction is a third
or less of the median rate of the other, over at least five transfers of 1 MiB or more each way.

Remedy: the same devices and transports on both engines.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ..thresholds import FACTOR
from ._rates import list_routes


def check(facts: Facts) -> Finding | None:
    """Pairs of engines whose two directions differ."""
    routes = list_routes(facts.spans("wire"))
    back = routes.rename({"source": "target", "target": "source", "rate": "other_rate", "count": "other_count"})
    slow = (
        routes.join(back, on=["source", "target"])
        .filter(pl.col("other_rate") >= FACTOR * pl.col("at_most"))
        .with_columns(gb_per_s=pl.col("at_most"), other_way_gb_per_s=pl.col("other_rate"))
        .sort("at_most")
    )
    if slow.is_empty():
        return None
    worst = slow.row(0, named=True)
    return RULE.find(
        f"{worst['source']} to {worst['target']} moves {worst['at_most']:.2f} GB/s at most, "
        f"back {worst['other_rate']:.2f} GB/s",
        slow,
        routes.height,
        columns=("source", "target", "gb_per_s", "other_way_gb_per_s", "count"),
        cost=slow["excess_ns"],
    )


RULE = Rule(
    "slow-direction",
    WARNING,
    "compare the transports of both directions: UCX_TLS, UCX_NET_DEVICES and backends in "
    "kv_connector_extra_config must be equal on both engines; UCX_LOG_LEVEL=info names the one in use",
    check,
    cases=(3,),
)

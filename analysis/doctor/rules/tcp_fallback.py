"""A run that should use RDMA moves data at the speed of TCP.

Finding: the manifest names an RDMA backend or transport (LIBFABRIC, EFA, rc, dc, ib), and the median of the highest
rates that the polls allow, over transfers of 1 MiB or more, is below 1.25 GB/s: what a 10 Gbit/s TCP stream reaches at
best, and less than a tenth of the slowest RDMA NIC in use for this.

Remedy: find out which transport is taken and why.
"""

from __future__ import annotations

import re

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._rates import list_routes

FLOOR_GB_PER_S = 1.25
RDMA = re.compile(r"\b(libfabric|efa|rc|dc|ib|rdma)(_|\b)", re.IGNORECASE)


def check(facts: Facts) -> Finding | None:
    """Routes below the floor in a run that names RDMA."""
    if not RDMA.search(f"{facts.manifest.get('backend', '')} {facts.manifest.get('transport', '')}"):
        return None
    routes = list_routes(facts.spans("wire"))
    slow = routes.filter(pl.col("at_most") < FLOOR_GB_PER_S).with_columns(gb_per_s=pl.col("at_most")).sort("at_most")
    if slow.is_empty():
        return None
    return RULE.find(
        f"{slow['at_most'][0]:.2f} GB/s at most over {facts.manifest.get('backend', 'RDMA')}: "
        "no RDMA transport is that slow",
        slow,
        routes.height,
        columns=("source", "target", "gb_per_s", "count"),
        cost=slow["excess_ns"],
    )


RULE = Rule(
    "tcp-fallback",
    WARNING,
    "check that the fabric is used: UCX_LOG_LEVEL=info or FI_LOG_LEVEL=info, UCX_TLS without tcp, "
    "backends in kv_connector_extra_config, the device plugin of the pod",
    check,
    cases=(3,),
)

"""EFA devices report retransmissions by time-out, unresponsive or impaired connections during the run.

Needs the sample stream (`kvlens efa-exporter --samples RUN/efa/HOST.jsonl`).

Finding: one of `retrans_timeout_events`, `unresponsive_remote_events`, `impaired_remote_conn_events` moved, or 1 %
of the bytes sent were retransmissions. SRD retransmits some packets on a healthy fabric, but a path that times out
is not healthy.

Remedy: the named device.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule

EVENTS = ("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")
RETRANSMITTED = 0.01


def check(facts: Facts) -> Finding | None:
    """Devices whose counters tell of trouble."""
    totals: dict[tuple[str, str], int] = {}
    for move in facts.efa:
        key = (move.device, move.counter)
        totals[key] = totals.get(key, 0) + move.delta
    devices = sorted({device for device, _ in totals})
    rows = [(device, name, totals.get((device, name), 0)) for device in devices for name in EVENTS]
    for device in devices:
        again, sent = totals.get((device, "retrans_bytes"), 0), totals.get((device, "tx_bytes"), 0)
        rows.append((device, "retrans_bytes", again if sent and again >= RETRANSMITTED * sent else 0))
    bad = pl.DataFrame(
        [row for row in rows if row[2] > 0],
        schema={"device": pl.String, "counter": pl.String, "moved": pl.Int64},
        orient="row",
    )
    if bad.is_empty():
        return None
    count = bad.n_unique("device")
    return RULE.find(
        f"{count} of {len(devices)} EFA devices report impaired traffic",
        bad.sort("moved", descending=True).unique("device", keep="first", maintain_order=True),
        len(devices),
        columns=("device", "counter", "moved"),
    )


RULE = Rule(
    "efa-impaired",
    WARNING,
    "look at the named device (kvlens efa-exporter, dmesg); move the pod off that host; retransmissions "
    "on all devices mean a busy fabric rather than a broken one",
    check,
    cases=(3,),
)

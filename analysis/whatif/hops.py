"""HTTP legs between client, router and engines, as far as a run shows them.

An engine takes requests in between two steps only, so of a busy engine one sees the leg and the wait for the step's end
together. What the leg alone took is then known as an interval: it came after the step before had begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from .observations import NS, Observations
from .parameters import DECODE, PREFILL, Hop, Source

MAX_INTERVAL = 0.06
"""A leg that is known no better than this (s) is left out: its middle would be a guess about the step's length."""
JUST_AFTER_NS = 2_000_000


def measure_hops(observed: Observations) -> tuple[dict[str, Any], list[Source]]:
    """Measure the legs: keyword arguments of Network, and where they come from."""
    requests = observed.requests
    legs = {
        "to_prefill": _measure_arrivals(observed, PREFILL, "r_prefill_start", "p_start"),
        "to_decode": _measure_arrivals(observed, DECODE, "r_decode_start", "d_start"),
        "from_prefill": _measure_answers(observed, PREFILL, "p_end", "r_prefill_end"),
        "delivery": _measure_answers(observed, DECODE, "d_first", "ttft_end"),
    }
    if observed.steps.is_empty():
        # Nobody knows when an engine stepped: a leg and the wait for a step are one, and the fastest are legs alone.
        legs = {name: (sorted(idle)[: max(len(idle) // 4, 1)], []) for name, (idle, _) in legs.items()}
    if not legs["to_prefill"][0]:
        legs["to_prefill"] = legs["to_decode"]
    hops: dict[str, Any] = {name: _make_hop(*legs[name]) for name in legs}
    sources = [Source(name, _word(hops[name]), _tell(*legs[name])) for name in legs]
    route = _median(requests, pl.col("r_prefill_start") - pl.col("ttft_start"))
    # The two legs of a push leave at once, so a push run says nothing of the router between the legs of a pull.
    between = pl.col("r_decode_start") - pl.col("r_prefill_end")
    turn = _median(requests.filter(between >= 0), between)
    sources.append(Source("route", f"{(route or 0) * 1e3:.1f} ms", "measured: client's send to the router's first leg"))
    origin = "measured" if turn is not None else "assumed: not in a push run"
    sources.append(Source("turnaround", f"{(turn or 0) * 1e3:.1f} ms", origin))
    return {**hops, "route": route or 0.0, "turnaround": turn or 0.0}, sources


def _measure_arrivals(observed: Observations, role: str, sent: str, taken: str) -> tuple[list[float], list[float]]:
    """Seconds from the router to the input queue of an engine that slept, and of one that stepped (middle of it)."""
    idle: list[float] = []
    busy: list[float] = []
    for engine, rows in observed.requests.drop_nulls([sent, taken]).group_by(f"{role[0]}_engine"):
        own = observed.list_stepping(role).filter(pl.col("engine") == engine[0]).sort("begin")
        begins, ends = own["begin"].to_numpy(), own["finish"].to_numpy()
        for start, end in rows.select(sent, taken).iter_rows():
            place = int(np.searchsorted(begins, end, side="left")) - 1  # the last step that began before it was taken
            if place < 0 or ends[place] <= start:
                idle.append((end - start) * NS)
                continue
            low, high = max(int(begins[place]) - start, 0) * NS, (end - start) * NS
            if high - low <= MAX_INTERVAL:
                busy.append((low + high) / 2)
    return idle, busy


def _measure_answers(observed: Observations, role: str, done: str, arrived: str) -> tuple[list[float], list[float]]:
    """Seconds from a step's end to the router, by whether the engine computes the next step meanwhile."""
    idle: list[float] = []
    busy: list[float] = []
    for engine, rows in observed.requests.drop_nulls([done, arrived]).group_by(f"{role[0]}_engine"):
        own = observed.list_stepping(role).filter(pl.col("engine") == engine[0]).sort("begin")
        begins, ends = own["begin"].to_numpy(), own["finish"].to_numpy()
        for start, end in rows.select(done, arrived).iter_rows():
            place = int(np.searchsorted(begins, start + JUST_AFTER_NS, side="right")) - 1
            is_busy = place >= 0 and ends[place] > start + JUST_AFTER_NS
            (busy if is_busy else idle).append(max((end - start) * NS, 0.0))
    return idle, busy


def _make_hop(idle: list[float], busy: list[float]) -> Hop:
    """A hop of what was seen; a state that never was seen is taken from the other one."""
    idle, busy = sorted(idle) or sorted(busy) or [0.0], sorted(busy) or sorted(idle) or [0.0]
    return Hop(tuple(idle), tuple(busy))


def _word(hop: Hop) -> str:
    return f"{np.median(hop.idle) * 1e3:.1f} ms, {np.median(hop.busy) * 1e3:.1f} ms beside a step"


def _tell(idle: list[float], busy: list[float]) -> str:
    if not idle and not busy:
        return "assumed: never seen"
    gaps = [name for name, values in (("asleep", idle), ("stepping", busy)) if not values]
    return f"measured: {len(idle)} at a sleeping engine, {len(busy)} at a stepping one" + (
        f"; never seen {gaps[0]}, taken as the other" if gaps else ""
    )


def _median(rows: pl.DataFrame, value: pl.Expr) -> float | None:
    found = rows.select(value.median()).item()
    return max(float(found) * NS, 0.0) if found is not None else None

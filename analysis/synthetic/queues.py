"""Vectorised queues and clock ticks: first come first served servers, engine steps, first contacts."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def serve_in_order(arrive: Floats, service: Floats, server: Ints) -> Floats:
    """Return when each job begins at its server, one at a time in order of arrival (Lindley's recursion)."""
    begin = np.empty_like(arrive)
    order = np.lexsort((arrive, server))
    bounds = np.flatnonzero(np.diff(server[order], prepend=-1, append=-2))
    for low, high in itertools.pairwise(bounds):
        jobs = order[low:high]
        before = np.cumsum(service[jobs]) - service[jobs]
        begin[jobs] = before + np.maximum.accumulate(arrive[jobs] - before)
    return begin


def next_tick(at: Floats, phase: Floats, period: float) -> Floats:
    """Return the first tick at or after a time; ticks of one clock are `period` apart and shifted by its phase."""
    ticks: Floats = np.ceil((at - phase) / period) * period + phase
    return ticks


def first_contacts(ready: Floats, pair: Ints, length: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return begin and end of the handshake of each request's pair, and which request begins it.

    The first request of a pair begins it, those that come before its end wait for it. length: ns per pair.
    """
    first = np.full(length.shape, np.inf)
    np.minimum.at(first, pair, ready)
    begin = first[pair]
    starts = np.zeros(ready.shape, dtype=np.bool_)
    order = np.lexsort((ready, pair))
    starts[order[np.flatnonzero(np.diff(pair[order], prepend=-1))]] = True
    return begin, begin + length[pair], starts


def overlap(a: Floats, b: Floats, low: Floats, high: Floats) -> Floats:
    """Length of [a, b] inside [low, high]."""
    inside: Floats = np.clip(np.minimum(b, high) - np.maximum(a, low), 0, None)
    return inside

"""All clocks of a run in relation: the bounds of every pair over time, also of hosts that never talk directly.

At one moment the messages say `difference of B and A <= high` for many ordered pairs. What they imply together is the
shortest path over these bounds (difference constraints; Floyd and Warshall 1962): the tightest sum, and one-way pairs
that close a circle bound each other too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from .pieces import Piece, count_jumps
from .strip import MAX_DRIFT, Floats

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """What the messages of one pair say by themselves; first and second are places in Relation.names."""

    first: int
    second: int
    pieces: Sequence[Piece]
    messages: tuple[int, int]
    """From first to second, and back."""
    impossible: int = 0

    @property
    def jumps(self) -> int:
        """Jumps of the one clock against the other."""
        return count_jumps(list(self.pieces))


@dataclass(frozen=True)
class Relation:
    """Clocks and the bounds of their differences.

    names: boot ids. zero: per clock, the Unix ns that stand for 0 on its rough axis. reference: the clock that others
    are put on. starts: begin of each span of time on the axis, ends: its end. high[side, span, a, b]: the difference
    b - a is at most this (ns) at the begin (side 0) and the end (side 1) of the span; at least -high[..., b, a].
    via[span, a, b]: a clock between a and b on the way, or -1. contradictions: spans in which the pairs exclude each
    other; bounds there were widened until they agree.
    """

    names: tuple[str, ...]
    zero: Places
    reference: int
    starts: Floats
    ends: Floats
    high: Floats
    via: Places
    pairs: tuple[Pair, ...]
    contradictions: int = 0
    place_of: Mapping[str, int] = field(default_factory=dict)

    def find_places(self, boots: pl.Series) -> Places:
        """Find the places of some boot ids; -1 where one is unknown."""
        places: Places = boots.replace_strict(self.place_of, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
        return places

    def bound(self, first: Places, second: Places, t: Floats) -> tuple[Floats, Floats]:
        """Bound the rough difference second - first (ns) at t on the axis; infinite where unknown."""
        span, share = self._locate(t)
        high = _blend(self.high[0, span, first, second], self.high[1, span, first, second], share)
        low = -_blend(self.high[0, span, second, first], self.high[1, span, second, first], share)
        return np.where(first == second, 0.0, low), np.where(first == second, 0.0, high)

    def guess(self, clock: Places, t: Floats) -> tuple[Floats, Floats]:
        """Guess each clock's rough difference to the reference at t, and its rate: (ns, ns per ns).

        The middle of the bounds; where only one is finite, that one; else 0.
        """
        span, share = self._locate(t)
        begin, end = (self._middle[side][span, clock] for side in (0, 1))
        inside = np.where((t >= self.starts[span]) & (t <= self.ends[span]), 1.0, 0.0)
        rate = inside * (end - begin) / np.maximum(self.ends[span] - self.starts[span], 1.0)
        return begin * (1 - share) + end * share, rate

    @cached_property
    def _middle(self) -> Floats:
        """The guesses at the begin and the end of every span, by clock."""
        high, low = self.high[:, :, self.reference, :], -self.high[:, :, :, self.reference]
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        both = np.where(has_low, low, 0.0) + np.where(has_high, high, 0.0)
        return np.where(has_low & has_high, both / 2, both)

    def find_route(self, first: int, second: int, span: int) -> list[int]:
        """Find the clocks between two that their upper bound goes through."""
        middle = int(self.via[span, first, second])
        if middle < 0:
            return []
        return [*self.find_route(first, middle, span), middle, *self.find_route(middle, second, span)]

    def _locate(self, t: Floats) -> tuple[Places, Floats]:
        span = np.clip(np.searchsorted(self.starts, t, side="right") - 1, 0, len(self.starts) - 1)
        length = np.maximum(self.ends[span] - self.starts[span], 1.0)
        return span, np.clip((t - self.starts[span]) / length, 0.0, 1.0)


def _blend(begin: Floats, end: Floats, share: Floats) -> Floats:
    known = np.isfinite(begin) & np.isfinite(end)
    straight = np.where(known, begin, 0.0) * (1 - share) + np.where(known, end, 0.0) * share
    return np.where(known, straight, np.inf)


def close_bounds(pairs: Sequence[Pair], count: int) -> tuple[Floats, Floats, Floats, Places, int]:
    """Close the bounds of all pairs: (starts, ends, high, via, contradictions), see Relation.

    Time is cut wherever a piece of any pair begins. In such a span every difference is straight (or jumps inside
    bounds that hold for both sides), so that what holds at both ends holds in between.
    """
    edges = sorted({edge for pair in pairs for piece in pair.pieces for edge in (piece.begin, piece.end)}) or [0.0, 1.0]
    starts, ends = np.array(edges[:-1]), np.array(edges[1:])
    high = np.full((2, len(starts), count, count), np.inf)
    high[:, :, np.arange(count), np.arange(count)] = 0.0
    for pair in pairs:
        for span, low_high in enumerate(_spread(pair.pieces, starts, ends)):
            for side, (low, top) in enumerate(low_high):
                high[side, span, pair.first, pair.second] = top
                high[side, span, pair.second, pair.first] = -low
    direct = high.copy()
    via = _close(high)
    contradicted = np.diagonal(high, axis1=2, axis2=3).min(axis=(0, 2)) < 0
    if contradicted.any():
        _widen(direct, contradicted)
        high, via = direct, _close(direct)
    high += MAX_DRIFT * np.where(np.isfinite(high), np.abs(high), 0.0)  # each pair's t is its own first clock's
    high[:, :, np.arange(count), np.arange(count)] = 0.0
    return starts, ends, high, via, int(contradicted.sum())


def _spread(pieces: Sequence[Piece], starts: Floats, ends: Floats) -> list[tuple[tuple[float, float], ...]]:
    """Cut a pair's pieces at the spans: ((low, high) at the begin, (low, high) at the end) of every span."""
    begins = np.array([piece.begin for piece in pieces])
    found = []
    for start, end in zip(starts, ends, strict=True):
        piece = pieces[int(np.clip(np.searchsorted(begins, (start + end) / 2, side="right") - 1, 0, len(pieces) - 1))]
        length = max(piece.end - piece.begin, 1.0)
        sides = []
        for at in (start, end):
            share = (at - piece.begin) / length
            sides.append((_interpolate(piece.low, share, -np.inf), _interpolate(piece.high, share, np.inf)))
        found.append(tuple(sides))
    return found


def _interpolate(ends: tuple[float, float], share: float, unknown: float) -> float:
    return ends[0] * (1 - share) + ends[1] * share if np.isfinite(ends).all() else unknown


def _close(high: Floats) -> Places:
    """Close the bounds in place; return through whom each path of the spans' begins goes."""
    count = high.shape[-1]
    via = np.full(high.shape[1:], -1, dtype=np.int64)
    for middle in range(count):
        through = high[:, :, :, middle, None] + high[:, :, middle, None, :]
        better = through < high
        via = np.where(better[0], middle, via)
        np.minimum(high, through, out=high)
    return via


def _widen(direct: Floats, contradicted: npt.NDArray[np.bool_]) -> None:
    """Widen all bounds of contradicted spans, in doubling steps, by the same amount until no circle is negative."""
    amount = 1_000.0
    count = direct.shape[-1]
    off_diagonal = ~np.eye(count, dtype=bool)
    while contradicted.any() and amount < 1e15:
        direct[:, contradicted] += np.where(off_diagonal, amount, 0.0)
        trial = direct.copy()
        _close(trial)
        contradicted = np.diagonal(trial, axis1=2, axis2=3).min(axis=(0, 2)) < 0
        amount *= 2

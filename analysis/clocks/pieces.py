"""The difference of one pair of clocks over time: pieces of bounds, each straight, and the jumps between them.

Time is cut into windows in which a clock's rate may be called constant. Inside a window a jump is found by the longest
runs of messages, from the front and from the back, that one line can explain: the jump lies between the end of the one
and the start of the other, and there the bounds are those of both sides together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .strip import FAR, MAX_DRIFT, Floats, Points, bound_at, find_robust

MAX_JUMPS = 6
"""A clock that jumps more often than this in one window is looked at in shorter ones."""
PARTS = 4
"""Pieces that a window's bounds are stated in."""
MAX_HALVINGS = 4
"""What even a sixteenth of a window does not explain has no bounds."""


@dataclass
class Piece:
    """Bounds (ns) of the difference from begin to end, straight in between, and of its drift (ns per ns).

    is_jump: the clock jumped somewhere inside. is_cut: nothing is carried over from the piece before.
    """

    begin: float
    end: float
    low: tuple[float, float] = (-np.inf, -np.inf)
    high: tuple[float, float] = (np.inf, np.inf)
    drift: tuple[float, float] = (-MAX_DRIFT, MAX_DRIFT)
    is_jump: bool = False
    is_cut: bool = False

    def tighten(self, low: float, high: float, *, at_end: bool) -> None:
        """Take over bounds that hold at one end, and at the other end widened by what a clock can drift meanwhile."""
        wider = MAX_DRIFT * (self.end - self.begin)
        near, far = (1, 0) if at_end else (0, 1)
        lows, highs = list(self.low), list(self.high)
        lows[near], highs[near] = max(lows[near], low), min(highs[near], high)
        lows[far], highs[far] = max(lows[far], low - wider), min(highs[far], high + wider)
        self.low, self.high = (lows[0], lows[1]), (highs[0], highs[1])


def fit_pieces(points: Points, edges: Sequence[float]) -> list[Piece]:
    """Bound a pair over the windows between the edges; what one window knows is carried on to its neighbours.

    Windows that exclude each other have a jump between them or near their border, where few messages tell of it: they
    are fitted once more, together.
    """
    fitted = [fit_window(_inside(points, begin, end), begin, end) for begin, end in pairwise(edges)]
    borders = [edges[0]]
    for place, (before, after) in enumerate(pairwise(fitted), 1):
        if not _exclude(before[-1], after[0]):
            borders.append(edges[place])
    borders.append(edges[-1])
    pieces: list[Piece] = []
    for begin, end in pairwise(borders):
        first, behind = edges.index(begin), edges.index(end)
        pieces += fitted[first] if behind == first + 1 else fit_window(_inside(points, begin, end), begin, end)
    return carry_over(pieces)


def _inside(points: Points, begin: float, end: float) -> Points:
    return points.pick((points.t >= begin) & (points.t < end))


def _exclude(before: Piece, after: Piece) -> bool:
    """Whether two neighbours' bounds have no difference in common where they meet."""
    return max(before.low[1], after.low[0]) > min(before.high[1], after.high[0])


def fit_window(points: Points, begin: float, end: float, halvings: int = MAX_HALVINGS) -> list[Piece]:
    """Bound a pair inside one window: one piece, or several with the jumps between them.

    Where neither one line nor clear jumps explain the messages, each half of the window is tried by itself.
    """
    middle = (begin + end) / 2
    found = find_robust(points, middle)
    if found is not None:
        return _bound_parts(found[0], middle, begin, end)
    order = np.argsort(points.t, kind="stable")
    ordered = Points(points.t[order], points.value[order], points.is_upper[order])
    runs = find_runs(ordered, middle)
    if runs is None:
        if not halvings:
            return [Piece(begin, end)]
        early = points.t < middle
        return [
            *fit_window(points.pick(early), begin, middle, halvings - 1),
            *fit_window(points.pick(~early), middle, end, halvings - 1),
        ]
    return _lay_out(ordered, runs, middle, begin, end)


def find_runs(points: Points, origin: float) -> list[tuple[int, int]] | None:
    """Find the runs of messages [first, behind) that one line explains for certain, the jumps lying between them.

    Greedy runs from the front reach past a jump for a while, those from the back begin before it: both together bound
    it. None when there are more than MAX_JUMPS, or when the two ways don't agree on their number.
    """
    ahead = _cut_greedily(points, origin)
    reverse = Points(points.t[::-1], points.value[::-1], points.is_upper[::-1])
    back = _cut_greedily(reverse, origin)
    if ahead is None or back is None or len(ahead) != len(back):
        return None
    starts = [len(points) - cut for cut in reversed(back)]
    firsts, behinds = [0, *ahead], [*starts, len(points)]
    runs = list(zip(firsts, behinds, strict=True))
    return runs if all(first < behind for first, behind in runs) else None


def _cut_greedily(points: Points, origin: float) -> list[int] | None:
    """Cut where the longest explainable run ends, again and again."""
    cuts: list[int] = []
    first = 0
    while True:
        good, bad = first + 1, len(points) + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            if find_robust(points.slice(first, middle), origin) is not None:
                good = middle
            else:
                bad = middle
        if good >= len(points):
            return cuts
        cuts.append(good)
        if len(cuts) > MAX_JUMPS:
            return None
        first = good


def _lay_out(points: Points, runs: list[tuple[int, int]], origin: float, begin: float, end: float) -> list[Piece]:
    """Lay the runs' pieces out over the window, with a piece for each jump that holds the bounds of both its sides."""
    polygons = []
    for first, behind in runs:
        found = find_robust(points.slice(first, behind), origin)
        if found is None:
            return [Piece(begin, end)]
        polygons.append(found[0])
    pieces: list[Piece] = []
    at = begin
    for place, (_, behind) in enumerate(runs):
        until = end if place == len(runs) - 1 else float(points.t[behind - 1])
        pieces += _bound_parts(polygons[place], origin, at, max(until, at))
        at = pieces[-1].end
        if place < len(runs) - 1:
            until = max(float(points.t[runs[place + 1][0]]), at)
            both = [_bound_piece(polygons[side], origin, at, until) for side in (place, place + 1)]
            pieces.append(
                Piece(
                    at, until, is_jump=True,
                    low=(min(one.low[0] for one in both), min(one.low[1] for one in both)),
                    high=(max(one.high[0] for one in both), max(one.high[1] for one in both)),
                )
            )  # fmt: skip
            at = until
    return pieces


def _bound_parts(vertices: Floats, origin: float, begin: float, end: float) -> list[Piece]:
    """Bound some parts of a window: the bounds are narrowest among the messages, and a piece knows its ends only."""
    cuts = np.linspace(begin, end, PARTS + 1).tolist()
    return [_bound_piece(vertices, origin, *ends) for ends in pairwise(cuts)]


def _bound_piece(vertices: Floats, origin: float, begin: float, end: float) -> Piece:
    (low0, high0), (low1, high1) = bound_at(vertices, origin, begin), bound_at(vertices, origin, end)
    known = np.abs(vertices[:, 0]).max() < FAR / 2
    drift = (float(vertices[:, 1].min()), float(vertices[:, 1].max())) if known else (-MAX_DRIFT, MAX_DRIFT)
    return Piece(begin, end, (low0, low1), (high0, high1), drift)


def carry_over(pieces: list[Piece]) -> list[Piece]:
    """Carry bounds from piece to piece: without a jump the difference goes on and drifts by MAX_DRIFT at most.

    Neighbours whose bounds exclude each other had a jump between them: nothing is carried over it, nor over a jump that
    was found inside a window.
    """
    pairs = list(pairwise(pieces))
    for before, after in pairs:
        after.is_cut = before.is_jump or after.is_jump or _exclude(before, after)
    for before, after in pairs:
        if not after.is_cut:
            after.tighten(before.low[1], before.high[1], at_end=False)
    for before, after in reversed(pairs):
        if not after.is_cut:
            before.tighten(after.low[0], after.high[0], at_end=True)
    return pieces


def count_jumps(pieces: Sequence[Piece]) -> int:
    """Count the jumps, inside windows and between them."""
    return sum(piece.is_jump for piece in pieces) + sum(
        after.is_cut and not (before.is_jump or after.is_jump) for before, after in pairwise(pieces)
    )

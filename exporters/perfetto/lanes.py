"""Slices of one track -> lanes in which they nest properly: no viewer draws half-overlapping slices right."""

from __future__ import annotations

from collections.abc import Iterable

from .timeline import Slice


def sort_key(piece: Slice) -> tuple[int, int, bool, str]:
    """Order by begin, the longest first, so that what encloses comes before what it encloses; instants last."""
    return (piece.begin, -piece.end, piece.is_instant, piece.key)


def place(slices: Iterable[Slice]) -> list[tuple[int, Slice]]:
    """Give each slice a lane, counted from 0, in the order of sort_key.

    A lane takes a slice when nothing in it is open then, or when what is open has the same owner and encloses it.
    """
    lanes: list[list[Slice]] = []
    placed: list[tuple[int, Slice]] = []
    for piece in sorted(slices, key=sort_key):
        lane = _choose(lanes, piece)
        if not piece.is_instant:
            lanes[lane].append(piece)
        placed.append((lane, piece))
    return placed


def _choose(lanes: list[list[Slice]], piece: Slice) -> int:
    for lane, stack in enumerate(lanes):
        while stack and _is_over(stack[-1], piece):
            stack.pop()
        if not stack or (stack[-1].owner == piece.owner and piece.end <= stack[-1].end):
            return lane
    lanes.append([])
    return len(lanes) - 1


def _is_over(earlier: Slice, later: Slice) -> bool:
    """Whether a slice has ended when another begins; an instant of its own at its very end still belongs to it."""
    if later.is_instant and later.owner == earlier.owner:
        return earlier.end < later.begin
    return earlier.end <= later.begin

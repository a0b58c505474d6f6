"""What a trace is made of, before it is bytes: processes, slices on named tracks, flows between slices, counters.

Times are Unix ns on one clock. Nothing here knows of kvlens spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """One process: key names it in slices and counters, pid is its real process id, order its place from the top."""

    key: str
    name: str
    pid: int
    order: int


@dataclass(frozen=True)
class Slice:
    """Something that took time, or an instant (begin equals end and is_instant is set).

    key: names it in flows. track: where it is drawn; slices of one track that overlap are put side by side.
    is_thread: the track is a thread. owner: only slices of one owner are nested in each other.
    """

    key: str
    process: str
    track: str
    name: str
    begin: int
    end: int
    owner: str = ""
    category: str = ""
    is_thread: bool = False
    is_instant: bool = False
    attributes: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Flow:
    """An arrow from one slice (or instant) to a later one, by their keys."""

    source: str
    target: str


@dataclass(frozen=True)
class Counter:
    """A level over time: (Unix ns, level from then on)."""

    process: str
    name: str
    unit: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Timeline:
    """A whole trace. track_order: tracks of a process from the top; those not named follow by name."""

    processes: tuple[Process, ...]
    slices: tuple[Slice, ...]
    flows: tuple[Flow, ...] = ()
    counters: tuple[Counter, ...] = ()
    track_order: tuple[str, ...] = ()

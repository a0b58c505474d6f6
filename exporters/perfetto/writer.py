"""A timeline -> Perfetto's protobuf: track descriptors, then events in time order, written packet by packet.

Flows: one flow id for each arrow, on the begin of its source and (terminating) on the begin of its target. The trace
processor takes events in time order and wants the source first, so an arrow that would go back in time (the clocks
of two hosts disagree) is left out and counted. Format: perfetto/trace/track_event in the `perfetto` wheel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from itertools import count, groupby
from typing import IO, Any

from .lanes import place as place_slices
from .timeline import Counter, Process, Slice, Timeline

SEQUENCE = 1
REALTIME, BOOTTIME = 1, 6
"""Perfetto's ids of built-in clocks; events are stamped in its default clock, BOOTTIME, which equals Unix time here."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4


@dataclass(frozen=True)
class Written:
    """What went into the file; backward_flows were left out because their ends contradict each other in time."""

    slices: int
    flows: int
    counters: int
    backward_flows: int


def number(*parts: object) -> int:
    """Return a stable 64-bit number other than 0 for a track or flow."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def write_trace(timeline: Timeline, file: IO[bytes]) -> Written:
    """Write a timeline as a Perfetto trace.

    Raises:
        ImportError: the `perfetto` wheel (its protobuf classes) is not installed.
    """
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    writer = _Writer(proto, file, timeline)
    writer.write()
    return writer.written


@dataclass(frozen=True)
class _Event:
    """One event to be: order is its place in its lane, piece the slice or instant that it begins."""

    at: int
    order: int
    kind: int
    track: int
    piece: Slice | None = None
    level: int | None = None


class _Writer:
    def __init__(self, proto: Any, file: IO[bytes], timeline: Timeline) -> None:
        self._proto = proto
        self._file = file
        self._timeline = timeline
        self._starts: dict[str, list[int]] = defaultdict(list)
        self._stops: dict[str, list[int]] = defaultdict(list)
        self._ranks = {name: place for place, name in enumerate(timeline.track_order)}
        self._pids = _choose_pids(timeline.processes)
        self._lanes: dict[tuple[str, str], tuple[int, bool]] = {}
        self._events = self._sort(list(self._place_all()))
        backward = self._number_flows()
        self.written = Written(len(timeline.slices), len(timeline.flows) - backward, len(timeline.counters), backward)

    def write(self) -> None:
        self._write_clock(self._events[0].at if self._events else 0)
        for process in self._timeline.processes:
            self._write_process(process)
        self._write_tracks()
        for event in self._events:
            packet = self._packet()
            packet.timestamp = event.at
            self._fill(packet.track_event, event)
            self._put(packet)

    # -- events ---------------------------------------------------------------------------------------------

    def _place_all(self) -> Iterator[_Event]:
        for (process, track), slices in _group(self._timeline.slices).items():
            placed = place_slices(slices)
            self._lanes[process, track] = (
                max(lane for lane, _ in placed) + 1,
                all(piece.is_thread for piece in slices),
            )
            yield from _open_and_close(process, track, placed)
        for counter in self._timeline.counters:
            track_id = number("counter", counter.process, counter.name)
            for at, level in counter.points:
                yield _Event(at, 0, _COUNTER, track_id, level=level)

    def _sort(self, events: list[_Event]) -> list[_Event]:
        """Sort by time, keeping each lane's order; at equal times an arrow's source comes before its target."""
        events.sort(key=lambda event: (event.at, event.order))
        into: dict[str, list[str]] = defaultdict(list)
        for flow in self._timeline.flows:
            into[flow.target].append(flow.source)
        ordered: list[_Event] = []
        for _, group in groupby(events, key=lambda event: event.at):
            ordered += _untie(list(group), into)
        return ordered

    def _number_flows(self) -> int:
        places = {event.piece.key: place for place, event in enumerate(self._events) if event.piece is not None}
        backward = 0
        for flow in self._timeline.flows:
            if places[flow.source] > places[flow.target]:
                backward += 1
                continue
            flow_id = number("flow", flow.source, flow.target)
            self._starts[flow.source].append(flow_id)
            self._stops[flow.target].append(flow_id)
        return backward

    def _fill(self, message: Any, event: _Event) -> None:
        message.type, message.track_uuid = event.kind, event.track
        if event.level is not None:
            message.counter_value = event.level
        if event.piece is None:
            return
        message.name = event.piece.name
        if event.piece.category:
            message.categories.append(event.piece.category)
        message.flow_ids.extend(self._starts.get(event.piece.key, ()))
        message.terminating_flow_ids.extend(self._stops.get(event.piece.key, ()))
        for name, value in event.piece.attributes.items():
            note = message.debug_annotations.add()
            note.name = name
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = value

    # -- descriptors ----------------------------------------------------------------------------------------

    def _write_clock(self, at: int) -> None:
        packet = self._packet()
        packet.sequence_flags = self._proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.clock_snapshot.primary_trace_clock = BOOTTIME
        for clock_id in (REALTIME, BOOTTIME):
            clock = packet.clock_snapshot.clocks.add()
            clock.clock_id, clock.timestamp = clock_id, at
        self._put(packet)

    def _write_process(self, process: Process) -> None:
        track = self._track(number("process", process.key), None, process.order)
        track.track_descriptor.process.pid = self._pids[process.key]
        track.track_descriptor.process.process_name = process.name
        track.track_descriptor.child_ordering = self._proto.TrackDescriptor.EXPLICIT
        self._put(track)

    def _write_tracks(self) -> None:
        tids: dict[str, int] = defaultdict(int)
        for (process, name), (lanes, is_thread) in sorted(self._lanes.items()):
            rank = self._ranks.get(name, len(self._ranks))
            for lane in range(lanes):
                track = self._track(number("lane", process, name, lane), number("process", process), rank)
                if is_thread and lane == 0:
                    # Python threads have names here, not kernel ids: number them from the process's own.
                    tids[process] += 1
                    track.track_descriptor.thread.pid = self._pids[process]
                    track.track_descriptor.thread.tid = self._pids[process] * 1000 + tids[process]
                    track.track_descriptor.thread.thread_name = name
                    track.track_descriptor.ClearField("parent_uuid")
                else:
                    track.track_descriptor.name = name
                self._put(track)
        for counter in self._timeline.counters:
            self._put(self._describe(counter))

    def _describe(self, counter: Counter) -> Any:
        uuid = number("counter", counter.process, counter.name)
        track = self._track(uuid, number("process", counter.process), len(self._ranks) + 1)
        track.track_descriptor.name = counter.name
        track.track_descriptor.counter.unit_name = counter.unit
        return track

    def _track(self, uuid: int, parent: int | None, rank: int) -> Any:
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.sibling_order_rank = rank
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        return packet

    def _packet(self) -> Any:
        packet = self._proto.TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def _put(self, packet: Any) -> None:
        trace = self._proto.Trace()
        trace.packet.append(packet)
        self._file.write(trace.SerializeToString())


def _open_and_close(process: str, track: str, placed: list[tuple[int, Slice]]) -> Iterator[_Event]:
    """Turn placed slices into begins, ends and instants, each lane in the one order in which it nests."""
    lanes: dict[int, list[Slice]] = defaultdict(list)
    for lane, piece in placed:
        lanes[lane].append(piece)
    for lane, pieces in lanes.items():
        uuid, order, stack = number("lane", process, track, lane), count(1), list[Slice]()
        for piece in pieces:
            while stack and not _encloses(stack[-1], piece):
                yield _Event(stack.pop().end, next(order), _END, uuid)
            yield _Event(piece.begin, next(order), _INSTANT if piece.is_instant else _BEGIN, uuid, piece)
            if not piece.is_instant:
                stack.append(piece)
        while stack:
            yield _Event(stack.pop().end, next(order), _END, uuid)


def _untie(group: list[_Event], into: dict[str, list[str]]) -> list[_Event]:
    """Order the events of one moment by lane order and arrows; where these contradict each other, by lane order."""
    places = {event.piece.key: place for place, event in enumerate(group) if event.piece is not None}
    if not any(source in places for key in places for source in into.get(key, ())):
        return group
    graph: dict[int, set[int]] = {place: set() for place in range(len(group))}
    last: dict[int, int] = {}
    for place, event in enumerate(group):
        if event.track in last:
            graph[place].add(last[event.track])
        last[event.track] = place
        if event.piece is not None:
            graph[place].update(places[source] for source in into.get(event.piece.key, ()) if source in places)
    try:
        return [group[place] for place in TopologicalSorter(graph).static_order()]
    except CycleError:
        return group


def _encloses(outer: Slice, inner: Slice) -> bool:
    if outer.owner != inner.owner or inner.end > outer.end:
        return False
    return inner.begin < outer.end or inner.is_instant


def _group(slices: tuple[Slice, ...]) -> dict[tuple[str, str], list[Slice]]:
    groups: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for piece in slices:
        groups[piece.process, piece.track].append(piece)
    return groups


def _choose_pids(processes: tuple[Process, ...]) -> dict[str, int]:
    """Keep real process ids where they differ; containers give every engine the same one, so those are renumbered."""
    used: set[int] = set()
    chosen = {}
    for process in processes:
        pid = process.pid
        while pid <= 0 or pid in used:
            pid += 1_000_000 if pid > 0 else 1 - pid
        used.add(pid)
        chosen[process.key] = pid
    return chosen

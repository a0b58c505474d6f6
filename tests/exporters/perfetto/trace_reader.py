"""Reads a Perfetto trace back as the trace processor does and refuses what it would count as an error.

Not the trace processor: a strict reader of the same format (track events of one sequence, default clock). It raises
AssertionError on: events out of time order, an event on a track without a descriptor, a parent without a descriptor, an
end without a begin, a slice never ended, a slice that ends after what encloses it, a terminating flow without a source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@dataclass
class ReadSlice:
    name: str
    process: str
    track: str
    thread: str
    start: int
    end: int | None
    depth: int
    annotations: dict


@dataclass
class ReadTrace:
    processes: dict = field(default_factory=dict)
    threads: list = field(default_factory=list)
    slices: list = field(default_factory=list)
    flows: list = field(default_factory=list)
    counters: dict = field(default_factory=dict)


def read_trace(path) -> ReadTrace:  # noqa: PLR0912, PLR0915 (one pass in file order is the point)
    trace = proto.Trace()
    trace.ParseFromString(path.read_bytes())
    assert trace.packet[0].sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {packet.trusted_packet_sequence_id for packet in trace.packet} == {1}
    result, tracks, pids = ReadTrace(), {}, {}
    stacks: dict[int, list[ReadSlice]] = {}
    open_flows: dict[int, ReadSlice] = {}
    last = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid
            assert track.uuid not in tracks, "descriptor twice"
            tracks[track.uuid] = track
            if track.HasField("process"):
                assert track.process.pid > 0
                assert track.process.pid not in pids
                pids[track.process.pid] = track.process.process_name
                result.processes[track.process.process_name] = track.process.pid
            elif track.HasField("thread"):
                assert track.thread.pid in pids, "thread before its process"
                result.threads.append((pids[track.thread.pid], track.thread.thread_name, track.thread.tid))
            else:
                assert track.parent_uuid in tracks, "parent without a descriptor"
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.timestamp >= last, "events out of time order"
        last = packet.timestamp
        assert event.track_uuid in tracks, "event on an unknown track"
        track, stack = tracks[event.track_uuid], stacks.setdefault(event.track_uuid, [])
        if event.type == COUNTER:
            assert track.HasField("counter")
            process = tracks[track.parent_uuid].process.process_name
            result.counters.setdefault((process, track.name), []).append((packet.timestamp, event.counter_value))
            continue
        if event.type == END:
            assert stack, "end without a begin"
            stack.pop().end = packet.timestamp
            continue
        if track.HasField("thread"):
            process, name = pids[track.thread.pid], track.thread.thread_name
        else:
            process, name = tracks[track.parent_uuid].process.process_name, track.name
        notes = {n.name: n.int_value if n.HasField("int_value") else n.string_value for n in event.debug_annotations}
        piece = ReadSlice(
            event.name, process, name, name if track.HasField("thread") else "", packet.timestamp,
            packet.timestamp if event.type == INSTANT else None, len(stack), notes,
        )  # fmt: skip
        result.slices.append(piece)
        if event.type == BEGIN:
            stack.append(piece)
        for flow in event.terminating_flow_ids:
            assert flow in open_flows, "flow ends without a start"
            result.flows.append((open_flows.pop(flow), piece))
        for flow in event.flow_ids:
            assert flow not in open_flows, "flow starts twice"
            open_flows[flow] = piece
    assert not any(stacks.values()), "slices never ended"
    assert not open_flows, "flows that lead nowhere"
    tids = [tid for _, _, tid in result.threads]
    assert len(tids) == len(set(tids))
    return result

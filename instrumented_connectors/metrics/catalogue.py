"""The one table of metrics: names, kinds, labels, buckets and meaning.

The accumulator, vLLM's `/metrics`, the exemplar endpoint (`kvlens metrics`), the dashboards and `docs/metrics.md` take
their names from here. Base units, `_total` on counters, no request ids in labels, bounded label values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import decide, offers

PREFIX = "kvlens_"
OVERFLOW = "overflow"
"""Label value that takes what exceeds a label's bound."""

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

SECONDS_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
# A lease is 30 s by default and is extended by heartbeats; the retention on a decoder is 480 s.
LEASE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0)
# One hand-over of an unfragmented cache is 10-100 descriptors, of a fragmented one over 10,000.
DESCRIPTOR_BUCKETS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0)
DESCRIPTOR_BYTES_BUCKETS = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)

# Segments, as far as one engine knows them. The first six are one observation per request, the others one per rank.
PREFILL_QUEUE, PREFILL_COMPUTE = "prefill_queue", "prefill_compute"
DECODE_ADMISSION, REMOTE_WAIT = "decode_admission", "remote_wait"
DECODE_QUEUE, FIRST_DECODE = "decode_queue", "first_decode"
HANDSHAKE, REGISTRATION_SEND, PAIRING, DISPATCH = "handshake", "registration_send", "pairing", "dispatch"
POST, WIRE, COMPLETION_LAG = "post", "wire", "completion_lag"

SEGMENTS: Mapping[str, str] = {
    PREFILL_QUEUE: "request at P's scheduler until first scheduled",
    PREFILL_COMPUTE: "first scheduled on P until the prompt is done",
    DECODE_ADMISSION: "request at the consuming scheduler until its blocks are allocated",
    REMOTE_WAIT: "blocks allocated until the scheduler is told that the KV is here",
    DECODE_QUEUE: "KV here until the first decode step",
    FIRST_DECODE: "first scheduled on D until the end of the step that gave the first token",
    HANDSHAKE: "first contact of two engines",
    REGISTRATION_SEND: "push: D sends its registration",
    PAIRING: "push: first side ready until both are",
    DISPATCH: "worker has both sides until the post begins (contains a handshake that blocks it)",
    POST: "the NIXL submission call",
    WIRE: "post returned until done was first seen (contains at most one poll interval)",
    COMPLETION_LAG: "done or notification seen until reported to the scheduler",
}

QUEUE, COMPUTE, COORDINATION, TRANSFER, UNATTRIBUTED = "queue", "compute", "coordination", "transfer", "unattributed"
CLASSES = (QUEUE, COMPUTE, COORDINATION, TRANSFER, UNATTRIBUTED)

AWAITING_TRANSFER, AWAITING_NEXT_TURN = "awaiting_transfer", "awaiting_next_turn"
AWAITING_ARRIVAL, ABORTED_RECEIVE = "awaiting_arrival", "aborted_receive"
HELD_REASONS: Mapping[str, str] = {
    AWAITING_TRANSFER: "finished on P, kept until the other side has read it or it was sent",
    AWAITING_NEXT_TURN: "finished on a decoder that keeps its blocks for the next turn",
    AWAITING_ARRIVAL: "reserved on the consuming side until the KV has arrived",
    ABORTED_RECEIVE: "request ended while its KV was still to arrive",
}
FETCHED = decide.FETCHED
FAILED_FETCHES = (decide.EXPIRED, decide.UNKNOWN_REMOTE, decide.FAILED, decide.FAILED_RECOMPUTED)
"""Reasons of the decisions counter: a fetch that worked, and those that brought nothing."""
SIDES = ("prefill", "decode")
MODES = ("push", "pull", "bidirectional")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: full name; base unit and `_total` included.
        kind: counter, gauge or histogram.
        doc: help text.
        labels: its own labels; in vLLM's `/metrics` they follow `model_name` and `engine`.
        buckets: upper bounds of a histogram, without +Inf.
        bounds: label -> number of values that are kept apart; further ones become `overflow`.
        presets: label values that exist with 0 from the start, so that a first increment is seen as one.
        roles, modes: engines that have it (all when empty).
        fed_by: what it takes for it to appear.
    """

    name: str
    kind: str
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    presets: tuple[tuple[str, ...], ...] = ()
    roles: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    fed_by: str = "every engine"

    def applies(self, role: str, mode: str) -> bool:
        """Return whether an engine of this role and mode can feed it."""
        return (role in (*self.roles, "both") or not self.roles) and (mode in self.modes or not self.modes)


MAX_PEERS = 64
_PEER = {"peer": MAX_PEERS}
_ROUTE = ("direction", "backend", "peer")
_WORKER_SCHEDULER = ("scheduler", "worker")
_PUSH_PREFILL: Any = {"roles": ("prefill",), "modes": ("push",), "fed_by": "prefill engine, push"}
_CONSUMER: Any = {"roles": ("decode",), "fed_by": "decode engine"}


def _counter(name: str, doc: str, *labels: str, **rest: Any) -> Metric:
    return Metric(f"{PREFIX}{name}_total", COUNTER, doc, labels, **rest)


def _gauge(name: str, doc: str, *labels: str, **rest: Any) -> Metric:
    return Metric(f"{PREFIX}{name}", GAUGE, doc, labels, **rest)


def _histogram(name: str, doc: str, buckets: tuple[float, ...], *labels: str, **rest: Any) -> Metric:
    return Metric(f"{PREFIX}{name}", HISTOGRAM, doc, labels, buckets, **rest)


SEGMENT_SECONDS = _histogram(
    "segment_seconds", "Duration of hand-over segments as this engine sees them.", SECONDS_BUCKETS, "mode", "segment",
)  # fmt: skip
PAIRING_LATENESS = _histogram(
    "pairing_lateness_seconds", "How much later the second side of a push was ready, by the side that came second.",
    SECONDS_BUCKETS, "side", **_PUSH_PREFILL,
)  # fmt: skip
LEASE_SECONDS = _histogram(
    "lease_seconds", "How long blocks were kept after their request, by how that ended.", LEASE_BUCKETS, "outcome",
    bounds={"outcome": 8}, fed_by="engines that keep blocks for the other side",
)  # fmt: skip
TRANSFER_DESCRIPTORS = _histogram(
    "transfer_descriptors", "NIXL descriptors per posted transfer.", DESCRIPTOR_BUCKETS, "direction",
    fed_by="engines that post transfers",
)  # fmt: skip
TRANSFER_DESCRIPTOR_BYTES = _histogram(
    "transfer_descriptor_bytes", "Mean bytes per descriptor of a transfer.", DESCRIPTOR_BYTES_BUCKETS, "direction",
    fed_by="engines that post transfers",
)  # fmt: skip

HANDOVER_SECONDS = _counter(
    "handover_seconds",
    "Seconds of requests by class: queue, compute, coordination, transfer, unattributed. A class's share is its rate "
    "over the rate of all. The slowest rank counts; waits that overlap the other engine's work are not counted.",
    "mode", "class",
)  # fmt: skip
REQUESTS = _counter(
    "requests", "Requests that ended on this engine, by the side it had in the hand-over and vLLM's final status.",
    "side", "status", bounds={"status": 12},
)  # fmt: skip
REMOTE_LOADS = _counter(
    "remote_loads", "Waits for remote KV that ended, by outcome (ok, failed).", "outcome",
    presets=(("ok",), ("failed",)), **_CONSUMER,
)  # fmt: skip
EXPECTED_REMOTE_MISSING = _counter(
    "expected_remote_missing",
    "Requests that reached a consuming engine without transfer parameters: their prompt is computed again.",
    presets=((),), **_CONSUMER,
)  # fmt: skip
TRANSFERRED_BYTES = _counter(
    "transferred_bytes", "Bytes moved, counted on the side that posts.", *_ROUTE, bounds=_PEER,
    fed_by="engines that post transfers",
)  # fmt: skip
TRANSFER_SECONDS = _counter(
    "transfer_seconds", "Seconds from post to done first seen, summed over transfers and ranks. Bytes over seconds is "
    "the rate of one transfer.", *_ROUTE, bounds=_PEER, fed_by="engines that post transfers",
)  # fmt: skip
TRANSFER_UNCERTAIN_SECONDS = _counter(
    "transfer_uncertain_seconds", "Share of the transfer seconds that lies between the last poll that saw the transfer "
    "in progress and the one that saw it done.", *_ROUTE, bounds=_PEER, fed_by="engines that post transfers",
)  # fmt: skip
TRANSFERS = _counter(
    "transfers", "Transfers that ended (per rank), by outcome (ok, error).", *_ROUTE, "outcome", bounds=_PEER,
    fed_by="engines that post transfers",
)  # fmt: skip
HANDSHAKES = _counter(
    "handshakes", "Handshakes by outcome: ok, or why it failed.", "outcome", bounds={"outcome": 8},
    presets=(("ok",), ("compatibility_hash_mismatch",), ("timeout",), ("other",)),
    fed_by="engines that post or register",
)  # fmt: skip
PAIRINGS = _counter(
    "pairings", "Pairings of finished blocks with a registration: paired, or dropped unpaired.", "outcome",
    presets=(("paired",), ("unpaired",)), **_PUSH_PREFILL,
)  # fmt: skip
FAILURES = _counter(
    "failures", "Failures by vLLM's name of the failure.", "type", bounds={"type": 24}, fed_by="engines with failures",
)  # fmt: skip
DECISIONS = _counter(
    "decisions", "Fetch-or-recompute decisions by reason.", "reason", bounds={"reason": 24},
    presets=tuple((reason,) for reason in decide.REASONS),
    roles=("prefill",), modes=("bidirectional",), fed_by="prefill engine, bidirectional",
)  # fmt: skip
VALIDATIONS = _counter(
    "invalid_offers", "Requests whose transfer parameters had something wrong with them, by the reason. "
    "prefix_mismatch: the prompt doesn't begin with what a fetch would bring.", "reason", bounds={"reason": 24},
    presets=tuple((reason,) for reason in offers.REASONS), fed_by="engines that are offered blocks",
)  # fmt: skip

HELD_BLOCKS = _gauge(
    "held_blocks", "KV-cache blocks held now for a transfer, by reason.", "reason",
    presets=tuple((reason,) for reason in HELD_REASONS),
)  # fmt: skip
HELD_REQUESTS = _gauge(
    "held_requests", "Requests whose blocks are held now for a transfer, by reason.", "reason",
    presets=tuple((reason,) for reason in HELD_REASONS),
)  # fmt: skip
OLDEST_HELD = _gauge(
    "oldest_held_seconds", "Age of the oldest request whose blocks are held now, by reason; 0 when there is none.",
    "reason", presets=tuple((reason,) for reason in HELD_REASONS),
)  # fmt: skip
PUSH_WAITING = _gauge(
    "push_waiting_requests", "Requests at the push writer: blocks = finished, not posted yet; registrations = "
    "registered by D, prompt not finished yet.", "waiting", "rank", **_PUSH_PREFILL,
)  # fmt: skip
PUSH_OLDEST = _gauge(
    "push_oldest_waiting_seconds", "Age of the oldest request at the push writer; 0 when there is none.",
    "waiting", "rank", **_PUSH_PREFILL,
)  # fmt: skip
ENGINE_INFO = _gauge(
    "engine_info", "Always 1: who this engine is (engine_id is what other engines call `peer`).",
    "engine_id", "role", "mode", "backend", "version",
)  # fmt: skip

EVENTS = _counter(
    "recorder_events", "Events of the recorder by process and outcome (recorded, dropped).", "process", "outcome",
    presets=tuple((p, o) for p in _WORKER_SCHEDULER for o in ("recorded", "dropped")),
)  # fmt: skip
SPANS = _counter(
    "spans", "Spans by process, exporter and what became of them: produced (exporter all), and per exporter exported, "
    "dropped (never tried) or failed (not known to have arrived).", "process", "exporter", "state",
    bounds={"exporter": 8}, presets=tuple((p, "all", "produced") for p in _WORKER_SCHEDULER),
)  # fmt: skip
SPANS_QUEUED = _gauge(
    "spans_queued", "Spans that wait for an exporter now.", "process", "rank", "exporter", bounds={"exporter": 8},
)  # fmt: skip
EVICTED = _counter(
    "evicted_requests", "Requests given up because too many were followed at the same time.", "process",
    presets=tuple((p,) for p in _WORKER_SCHEDULER),
)  # fmt: skip
GUARD_ERRORS = _counter(
    "guard_errors", "Failures inside kvlens that were swallowed.", "process",
    presets=tuple((p,) for p in _WORKER_SCHEDULER),
)  # fmt: skip
OVERHEAD_SECONDS = _counter(
    "overhead_seconds", "CPU seconds of kvlens's own background thread.", "process",
    presets=tuple((p,) for p in _WORKER_SCHEDULER),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (
    SEGMENT_SECONDS, HANDOVER_SECONDS, REQUESTS, REMOTE_LOADS, EXPECTED_REMOTE_MISSING, DECISIONS, VALIDATIONS,
    PAIRING_LATENESS, PAIRINGS, PUSH_WAITING, PUSH_OLDEST,
    LEASE_SECONDS, HELD_BLOCKS, HELD_REQUESTS, OLDEST_HELD,
    TRANSFERRED_BYTES, TRANSFER_SECONDS, TRANSFER_UNCERTAIN_SECONDS, TRANSFERS, TRANSFER_DESCRIPTORS,
    TRANSFER_DESCRIPTOR_BYTES, HANDSHAKES, FAILURES,
    ENGINE_INFO, EVENTS, SPANS, SPANS_QUEUED, EVICTED, GUARD_ERRORS, OVERHEAD_SECONDS,
)  # fmt: skip

TIME_TO_FIRST_TOKEN = _histogram(
    "time_to_first_token_seconds", "Request at the router until its first token was written to the client.",
    SECONDS_BUCKETS, "mode", fed_by="router spans (`kvlens metrics` only)",
)  # fmt: skip
"""Engines don't know it: served by `kvlens metrics` from the router's spans."""

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

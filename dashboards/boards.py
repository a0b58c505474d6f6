"""The dashboards: which panels, in which rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .panels import efa, handover, incident, interference, leases, own, pairing, request, transfers
from .panels.make import PanelFunction
from .variables import make_baseline, make_slower, make_trace_id


@dataclass(frozen=True)
class Row:
    """A row: panels side by side with their widths; 24 fill a line, further ones begin the next."""

    title: str
    panels: tuple[tuple[PanelFunction, int], ...]
    height: int = 9


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Attributes:
        uid: fixed for ever, links use it.
        variables: own ones, after the common five.
        common: whether it has the common five.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Callable[[], Any], ...] = ()
    common: bool = True


OVERVIEW = Board(
    "kvlens-overview", "kvlens / Hand-over overview", "Where the time to first token goes. Start here.",
    (
        Row("Now", ((handover.firing_alerts, 3), (handover.firing_list, 9), (handover.coordination_now, 4),
                    (handover.ttft_now, 4), (handover.requests_now, 4)), height=5),
        Row("Time to first token", ((handover.ttft, 12), (handover.class_seconds, 12))),
        Row("Coordination", ((handover.class_share_by_mode, 12), (handover.coordination_by_engine, 12))),
        Row("Segments", ((handover.segment_means, 12), (handover.segment_tails, 12))),
        Row("Push only", ((pairing.late_side, 8), (pairing.lateness, 8), (pairing.push_oldest, 8))),
        Row("Wire", ((transfers.pair_rates, 12), (transfers.moved, 12))),
        Row("Saturation", ((handover.requests, 8), (handover.waiting, 8), (handover.cache_usage, 8))),
    ),
)  # fmt: skip

INCIDENT = Board(
    "kvlens-incident", "kvlens / Incident breakdown", "What differs from an earlier time, by segment, engine and pair.",
    (
        Row("What grew", ((incident.classes_changed, 8), (incident.segments_changed, 8), (incident.load_changed, 8))),
        Row("Since when", ((incident.segments_over_time, 12), (handover.traced_segments, 12))),
        Row("Where", ((incident.engines_changed, 12), (incident.pairs_changed, 12))),
        Row("Example requests", ((incident.example_requests, 24),)),
    ),
    (make_baseline,),
)  # fmt: skip

REQUEST_TEMPO = Board(
    "kvlens-request-tempo", "kvlens / Request (Tempo)", "One request's waterfall.",
    (
        Row("Request", ((request.tempo_waterfall, 24),), height=18),
        Row("Find one", ((request.tempo_slow, 12), (request.tempo_waits, 12))),
    ),
    (make_trace_id, make_slower), common=False,
)  # fmt: skip

REQUEST_CLICKHOUSE = Board(
    "kvlens-request-clickhouse", "kvlens / Request (ClickHouse)", "One request's budget and waterfall.",
    (
        Row("Request", ((request.budget, 9), (request.clickhouse_waterfall, 15)), height=18),
        Row("Find one", ((request.slowest, 24),)),
    ),
    (make_trace_id,), common=False,
)  # fmt: skip

LEASES = Board(
    "kvlens-leases", "kvlens / Leases and blocks", "Blocks that are kept for somebody, and how that ends.",
    (
        Row("Held now", ((leases.held_blocks, 8), (leases.held_requests, 8), (leases.oldest_held, 8))),
        Row("Leases", ((leases.lease_ends, 8), (leases.lease_length, 8), (leases.holders, 8))),
        Row("Meeting of P and D", ((pairing.remote_missing, 8), (pairing.remote_loads, 8), (handover.cache_usage, 8))),
        Row("Push writer (push only)", ((pairing.pairings, 8), (pairing.push_waiting, 8), (pairing.push_oldest, 8))),
    ),
)  # fmt: skip

REUSE = Board(
    "kvlens-reuse", "kvlens / Conversations and reuse",
    "Bidirectional: what keeping blocks for a next turn costs and brings.",
    (
        Row("Decisions", ((leases.decisions, 8), (leases.invalid_offers, 8), (leases.lease_ends, 8))),
        Row("Retained memory", ((leases.retained, 8), (leases.oldest_retained, 8), (handover.cache_usage, 8))),
    ),
)  # fmt: skip

INTERFERENCE = Board(
    "kvlens-interference", "kvlens / Interference (TPOT)", "Which transfers slow which tokens.",
    (
        Row("Tokens", ((interference.token_latency, 12), (interference.connector_share, 12))),
        Row("Steps and threads", ((interference.slow_steps, 12), (interference.threads, 12)), height=12),
    ),
)  # fmt: skip

WIRE = Board(
    "kvlens-wire", "kvlens / EFA and wire", "Transfers beside what the network devices say.",
    (
        Row("Transfers", ((transfers.post_and_wire, 12), (transfers.pair_rates, 12))),
        Row("Devices", ((efa.rails, 12), (efa.operations, 12))),
        Row("Network", ((efa.retransmitted, 8), (efa.events, 8), (efa.devices, 8))),
        Row("Now", ((efa.links, 8), (transfers.slowest_pairs, 16))),
        Row("Descriptors", ((transfers.descriptors, 8), (transfers.descriptor_bytes, 8), (transfers.uncertainty, 8))),
        Row("Failures", ((transfers.outcomes, 8), (transfers.failures, 8), (transfers.handshakes, 8))),
    ),
)  # fmt: skip

OWN = Board(
    "kvlens-itself", "kvlens / kvlens itself", "Whether kvlens sees everything, and what it costs.",
    (
        Row("Records", ((own.spans, 8), (own.queued, 8), (own.events, 8))),
        Row("Cost and failures", ((own.overhead, 8), (own.guard_errors, 8), (own.evicted, 8))),
        Row("Who", ((own.engines, 16), (own.traced, 8))),
    ),
)  # fmt: skip

BOARDS = (OVERVIEW, INCIDENT, REQUEST_TEMPO, REQUEST_CLICKHOUSE, LEASES, REUSE, INTERFERENCE, WIRE, OWN)

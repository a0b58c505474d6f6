"""Series of a healthy pair over 90 minutes, in promtool's notation, and what each fault changes in them."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 180
"""Samples of a series, 30 s apart."""

Series = dict[str, str]


def grow(step: float, start: float = 0) -> str:
    return f"{start:g}+{step:g}x{STEPS}"


def stay(value: float) -> str:
    return f"{value:g}x{STEPS}"


def turn(before: float, after: float, at: int = 140) -> str:
    """A counter that grows by `before` a step until step `at`, by `after` then."""
    return f"0+{before:g}x{at} {before * at + after:g}+{after:g}x{STEPS - at}"


def appear(at: int = STEPS - 10) -> str:
    """A counter that its first increment makes."""
    return f"_x{at} 1x{STEPS - at}"


def vllm(engine: str) -> str:
    return f'cluster="c", namespace="n", job="vllm", instance="{engine}:8000", model_name="m", engine="0"'


P, D = vllm("p0"), vllm("d0")
PAIR = 'direction="WRITE", backend="UCX", peer="d0"'
BYTES = f"kvlens_transferred_bytes_total{{{P}, {PAIR}}}"
TRANSFER_SECONDS = f"kvlens_transfer_seconds_total{{{P}, {PAIR}}}"
UNCERTAIN_SECONDS = f"kvlens_transfer_uncertain_seconds_total{{{P}, {PAIR}}}"
EFA = 'cluster="c", instance="host:9810", device="rdmap0", port="1"'


def bucket(le: str) -> str:
    return f'kvlens_segment_seconds_bucket{{{P}, mode="push", segment="wire", le="{le}"}}'


def handover(name: str) -> str:
    return f'kvlens_handover_seconds_total{{{P}, mode="push", class="{name}"}}'


def lateness(side: str, suffix: str) -> str:
    return f'kvlens_pairing_lateness_seconds_{suffix}{{{P}, side="{side}"}}'


def held(kind: str, engine: str, reason: str) -> str:
    return f'kvlens_{kind}{{{engine}, reason="{reason}"}}'


def waiting(side: str) -> str:
    return f'kvlens_push_oldest_waiting_seconds{{{P}, waiting="{side}", rank="0"}}'


def efa(counter: str) -> str:
    return f"node_amazonefa_{counter}{{{EFA}}}"


MISSING = f"kvlens_expected_remote_missing_total{{{D}}}"
LOADS = f'kvlens_remote_loads_total{{{D}, outcome="ok"}}'
EXPIRED, FETCHED, FIRST_TURN = (
    f'kvlens_decisions_total{{{P}, reason="{reason}"}}' for reason in ("expired", "fetched", "no_remote_metadata")
)
USAGE = f"vllm:kv_cache_usage_perc{{{D}}}"
HANDSHAKE_TIMEOUTS = f'kvlens_handshakes_total{{{D}, outcome="timeout"}}'
EXPORTED, DROPPED = (
    f'kvlens_spans_total{{{P}, process="worker", exporter="file", state="{state}"}}'
    for state in ("exported", "dropped")
)
EVENTS_DROPPED = f'kvlens_recorder_events_total{{{P}, process="worker", outcome="dropped"}}'
GUARD = f'kvlens_guard_errors_total{{{P}, process="worker"}}'

HEALTHY: Series = {
    f'kvlens_engine_info{{{P}, engine_id="p0", role="prefill", mode="push", backend="UCX", version="1"}}': stay(1),
    f'kvlens_engine_info{{{D}, engine_id="d0", role="decode", mode="push", backend="UCX", version="1"}}': stay(1),
    handover("queue"): grow(1),
    handover("compute"): grow(20),
    handover("coordination"): grow(2),
    handover("transfer"): grow(2),
    f'kvlens_segment_seconds_count{{{D}, mode="push", segment="first_decode"}}': grow(20),
    bucket("0.01"): grow(10),
    bucket("0.1"): grow(20),
    bucket("1"): grow(20),
    bucket("+Inf"): grow(20),
    lateness("decode", "count"): grow(10),
    lateness("decode", "sum"): grow(0.1),
    lateness("prefill", "count"): grow(10),
    lateness("prefill", "sum"): grow(2),
    f'kvlens_lease_seconds_count{{{P}, outcome="sent"}}': grow(20),
    held("oldest_held_seconds", D, "awaiting_arrival"): stay(0.2),
    held("oldest_held_seconds", P, "awaiting_transfer"): stay(1),
    held("held_blocks", D, "aborted_receive"): stay(0),
    held("held_blocks", D, "awaiting_next_turn"): stay(40),
    EXPIRED: stay(0),
    FETCHED: grow(20),
    FIRST_TURN: grow(20),
    USAGE: stay(0.5),
    waiting("blocks"): stay(0.1),
    waiting("registrations"): stay(0.3),
    BYTES: grow(2e10),
    TRANSFER_SECONDS: grow(1),
    UNCERTAIN_SECONDS: grow(0.3),
    f'kvlens_transfers_total{{{P}, {PAIR}, outcome="ok"}}': grow(20),
    f'kvlens_handshakes_total{{{D}, outcome="ok"}}': stay(1),
    HANDSHAKE_TIMEOUTS: stay(0),
    MISSING: stay(0),
    LOADS: grow(20),
    efa("tx_pkts"): grow(1e6),
    efa("retrans_pkts"): grow(10),
    EXPORTED: grow(100),
    DROPPED: stay(0),
    EVENTS_DROPPED: stay(0),
    GUARD: stay(0),
}


@dataclass(frozen=True)
class Case:
    """A fault: the series that it changes, and the alerts that fire with it."""

    name: str
    series: Series
    alerts: dict[str, int]


CASES = (
    Case("coordination", {handover("coordination"): turn(2, 100)}, {"KvlensCoordinationShareHigh": 1}),
    Case(
        "late every time",
        {
            lateness("decode", "sum"): grow(3),
            lateness("prefill", "count"): stay(0),
            lateness("prefill", "sum"): stay(0),
        },
        {"KvlensRegistrationAlwaysLate": 1},
    ),
    Case("parameters lost", {MISSING: turn(0, 5)}, {"KvlensExpectedRemoteMissing": 1}),
    Case("D waits", {held("oldest_held_seconds", D, "awaiting_arrival"): grow(30)}, {"KvlensDecodeWaitStuck": 1}),
    Case("writer", {waiting("blocks"): grow(30), waiting("registrations"): grow(30)}, {"KvlensWriterStalled": 1}),
    Case(
        "first expiry", {f'kvlens_lease_seconds_count{{{P}, outcome="expired"}}': appear()}, {"KvlensLeaseExpired": 1}
    ),
    Case(
        "more expiries", {f'kvlens_lease_seconds_count{{{P}, outcome="expired"}}': grow(1)}, {"KvlensLeaseExpired": 1}
    ),
    Case("nobody reads", {held("oldest_held_seconds", P, "awaiting_transfer"): grow(30)}, {"KvlensLeaseOverdue": 1}),
    Case("aborted", {held("held_blocks", D, "aborted_receive"): stay(12)}, {"KvlensAbortedBlocksHeld": 1}),
    Case("retention", {USAGE: stay(0.97)}, {"KvlensRetentionPressure": 1}),
    Case("turns after the retention", {EXPIRED: turn(0, 5)}, {"KvlensReadbackFailing": 1}),
    Case("slow transport", {BYTES: turn(2e10, 3e8)}, {"KvlensTransferRateLow": 1}),
    Case(
        "post fails",
        {f'kvlens_transfers_total{{{P}, {PAIR}, outcome="error"}}': appear()},
        {"KvlensTransferFailing": 1},
    ),
    Case(
        "post can't be made",
        {f'kvlens_failures_total{{{P}, type="transfer_setup_failed"}}': appear()},
        {"KvlensTransferFailing": 1},
    ),
    Case("handshake times out", {HANDSHAKE_TIMEOUTS: turn(0, 1, 175)}, {"KvlensHandshakeFailing": 1}),
    Case(
        "hash mismatch",
        {f'kvlens_handshakes_total{{{D}, outcome="compatibility_hash_mismatch"}}': appear()},
        {"KvlensHandshakeFailing": 1},
    ),
    Case(
        "retransmissions with slow transfers",
        {efa("retrans_pkts"): turn(10, 5000), bucket("0.1"): turn(20, 10)},
        {"KvlensEfaRetransmissions": 1},
    ),
    Case("spans dropped", {DROPPED: turn(0, 50)}, {"KvlensDropping": 1}),
    Case("events dropped", {EVENTS_DROPPED: turn(0, 50)}, {"KvlensDropping": 1}),
    Case("guard", {GUARD: turn(0, 1, 160)}, {"KvlensGuardErrors": 1}),
    # What looks like a fault and is none.
    Case(
        "a high share of very little",
        {
            handover("coordination"): turn(2, 100),
            f'kvlens_segment_seconds_count{{{D}, mode="push", segment="first_decode"}}': grow(20000),
        },
        {},
    ),
    Case("retransmissions, transfers as before", {efa("retrans_pkts"): turn(10, 5000)}, {}),
    Case("only D is late, by a little", {lateness("prefill", "count"): stay(0)}, {}),
    Case("blocks wait for a registration", {waiting("blocks"): grow(30)}, {}),
    Case("a conversation ends", {f'kvlens_lease_seconds_count{{{D}, outcome="expired"}}': grow(1)}, {}),
    Case("an old expiry", {f'kvlens_lease_seconds_count{{{P}, outcome="expired"}}': stay(3)}, {}),
    Case(
        "a full cache that keeps nothing",
        {USAGE: stay(0.97), held("held_blocks", D, "awaiting_next_turn"): stay(0)},
        {},
    ),
    Case(
        "a pair that moves little",
        {BYTES: grow(3e6), TRANSFER_SECONDS: grow(0.03), UNCERTAIN_SECONDS: grow(0.01)},
        {},
    ),
    Case("slow as far as polls can tell", {BYTES: grow(3e8), UNCERTAIN_SECONDS: grow(1)}, {}),
    Case("first turns only", {FETCHED: stay(0), FIRST_TURN: grow(50)}, {}),
    Case("one turn in fifty is late", {EXPIRED: grow(0.4)}, {}),
    Case("one request without parameters", {MISSING: f"0x{STEPS - 20} 1x20"}, {}),
    Case("an idle fleet", dict.fromkeys((handover("coordination"), handover("compute"), BYTES, LOADS), "100x180"), {}),
)

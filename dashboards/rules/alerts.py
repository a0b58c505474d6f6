"""The alerts of the hand-over, its leases and its transfers. Each has a runbook of its name in docs/runbooks."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import grown, identify, rate_of, total
from .fabric import retransmissions, transfer_rate_low
from .model import Alert, Group
from .own import dropping, guard_errors

WHO = "cluster, namespace, model_name, role, engine_id"


def make_alerts(config: Config) -> tuple[Group, ...]:
    """Return the groups of alerting rules."""
    handover = (coordination_share, registration_late, expected_remote_missing, decode_wait_stuck, writer_stalled)
    leases = (lease_expired, lease_overdue, aborted_blocks_held, retention_pressure, readback_failing)
    transfers = (transfer_rate_low, transfer_failing, handshake_failing, retransmissions)
    return (
        Group("kvlens-handover", "30s", tuple(make(config) for make in handover)),
        Group("kvlens-leases", "30s", tuple(make(config) for make in leases)),
        Group("kvlens-transfers", "30s", tuple(make(config) for make in transfers)),
        Group("kvlens-itself", "60s", tuple(make(config) for make in (dropping, guard_errors))),
    )


def coordination_share(config: Config) -> Alert:
    """Two windows: now, and for long enough to matter. And a floor: short prompts have a high share of very little."""
    limit, name = config.coordination_share, f"{config.recorded}coordination_share"
    return Alert(
        "KvlensCoordinationShareHigh", "warning", "10m",
        f"{name}:5m > {limit} and {name}:1h > {limit / 2}\n"
        f"  and {config.recorded}coordination_seconds:5m > {config.coordination_seconds:g}",
        "{{ $value | humanizePercentage }} of the hand-over ({{ $labels.mode }}) is spent waiting for coordination.",
        "Look at Incident breakdown: which segment grew, on which engine.",
    )  # fmt: skip


def registration_late(config: Config) -> Alert:
    """A healthy push has either side late; a router that runs the legs in turn makes D late every time."""
    count = config.record(table.PAIRING_LATENESS, "_count")
    seconds = config.record(table.PAIRING_LATENESS, "_sum")
    late, late_seconds = f'{count}{{side="decode"}}', f'{seconds}{{side="decode"}}'
    return Alert(
        "KvlensRegistrationAlwaysLate", "warning", "10m",
        f"{total(WHO, late)} / ({total(WHO, count)} > 0.01) > 0.95\n"
        f"  and {total(WHO, late_seconds)} / {total(WHO, late)} > 0.05",
        "{{ $labels.engine_id }} finishes every prompt before the decode engine has registered: push waits each time.",
        "Check that the router sends both legs at once.",
    )  # fmt: skip


def expected_remote_missing(config: Config) -> Alert:
    """Compared with the loads that did arrive, so that one stray request pages nobody."""
    missing = identify(config, rate_of(config.name(table.EXPECTED_REMOTE_MISSING)))
    loads = identify(config, rate_of(config.name(table.REMOTE_LOADS)))
    return Alert(
        "KvlensExpectedRemoteMissing", "warning", "5m",
        f"{total(WHO, missing)} / (({total(WHO, loads)}) + {total(WHO, missing)}) > 0.05",
        "{{ $value | humanizePercentage }} of the requests of {{ $labels.engine_id }} came without transfer parameters "
        "and are prefilled a second time.",
        "Check that the router forwards kv_transfer_params whole.",
    )  # fmt: skip


def decode_wait_stuck(config: Config) -> Alert:
    """The oldest wait, not a rate: a request that hangs ends no span."""
    oldest = identify(config, f'{config.name(table.OLDEST_HELD)}{{reason="awaiting_arrival"}}')
    return Alert(
        "KvlensDecodeWaitStuck", "critical", "1m",
        f"max by ({WHO}) ({oldest}) > {config.stuck_seconds:g}",
        "A request on {{ $labels.engine_id }} has waited {{ $value | humanizeDuration }} for KV that may never come.",
        "Find its prefill engine's failed post; drain the pair when it repeats.",
    )  # fmt: skip


def writer_stalled(config: Config) -> Alert:
    """Blocks and registrations both wait and nothing is posted; blocks alone mean that D never registered."""
    name, by = config.name(table.PUSH_OLDEST), f"{WHO}, rank"
    blocks = identify(config, f'{name}{{waiting="blocks"}}')
    registrations = identify(config, f'{name}{{waiting="registrations"}}')
    limit = f"{config.writer_seconds:g}"
    return Alert(
        "KvlensWriterStalled", "critical", "1m",
        f"max by ({by}) ({blocks}) > {limit}\n"
        f"  and max by ({by}) ({registrations}) > {limit}",
        "The push writer of {{ $labels.engine_id }} rank {{ $labels.rank }} has both sides ready and posts nothing.",
        "Restart the engine after draining it; keep its log.",
    )  # fmt: skip


def lease_expired(config: Config) -> Alert:
    """A reader that comes after the end reads blocks of somebody else, with HTTP 200.

    Not of decode engines: what they keep for a next turn expires with every conversation that ends.
    """
    expired = f'{config.name(table.LEASE_SECONDS, "_count")}{{outcome="expired"}}'
    by = "cluster, namespace, model_name, instance, engine"
    return Alert(
        "KvlensLeaseExpired", "critical", "0m",
        f"({grown(expired, by, '10m')})\n"
        f'  and on (cluster, namespace, instance, engine) {config.engines}{{role!="decode"}}',
        "{{ $labels.instance }} gave blocks away unread: a late reader gets the KV of another request.",
        "Treat answers of that time as suspect; find why the reader was late.",
    )  # fmt: skip


def lease_overdue(config: Config) -> Alert:
    """Twice the lease, since heartbeats extend it."""
    oldest = identify(config, f'{config.name(table.OLDEST_HELD)}{{reason="awaiting_transfer"}}')
    return Alert(
        "KvlensLeaseOverdue", "warning", "1m",
        f"max by ({WHO}) ({oldest}) > {2 * config.lease_seconds:g}",
        "{{ $labels.engine_id }} has kept finished blocks for {{ $value | humanizeDuration }}; nobody comes for them.",
        "Check whether the decode engine rejected the request.",
    )  # fmt: skip


def aborted_blocks_held(config: Config) -> Alert:
    """Some are normal while a transfer ends; for ten minutes they are leaked."""
    held = identify(config, f'min_over_time({config.name(table.HELD_BLOCKS)}{{reason="aborted_receive"}}[10m])')
    return Alert(
        "KvlensAbortedBlocksHeld", "warning", "5m",
        f"{total(WHO, held)} > 0",
        "{{ $labels.engine_id }} holds {{ $value }} blocks of requests that were cancelled: its cache shrinks.",
        "Restart the decode engine when the number only grows.",
    )  # fmt: skip


def retention_pressure(config: Config) -> Alert:
    """Only when the cache is nearly full is retained memory taken from somebody."""
    usage = identify(config, "vllm:kv_cache_usage_perc")
    kept = identify(config, f'{config.name(table.HELD_BLOCKS)}{{reason="awaiting_next_turn"}}')
    return Alert(
        "KvlensRetentionPressure", "warning", "10m",
        f"max by ({WHO}) ({usage}) > 0.9 and {total(WHO, kept)} > 0",
        "The cache of {{ $labels.engine_id }} is {{ $value | humanizePercentage }} full; blocks wait for next turns.",
        "Shorten decoder_kv_blocks_ttl.",
    )  # fmt: skip


def readback_failing(config: Config) -> Alert:
    """A first turn decides nothing, so fetches that brought nothing are compared with all fetches."""
    name = config.name(table.DECISIONS)
    failed = identify(config, rate_of(f'{name}{{reason=~"{"|".join(table.FAILED_FETCHES)}"}}'))
    tried = identify(config, rate_of(f'{name}{{reason=~"{"|".join((table.FETCHED, *table.FAILED_FETCHES))}"}}'))
    return Alert(
        "KvlensReadbackFailing", "warning", "5m",
        f"{total(WHO, failed)} / ({total(WHO, tried)} > 0) > 0.1",
        "{{ $value | humanizePercentage }} of the turns that {{ $labels.engine_id }} wanted to continue found no KV on "
        "the decode engine: they fail, or are computed again, as kv_load_failure_policy says.",
        "Expired: raise decoder_kv_blocks_ttl, or let the router drop old offers.",
    )  # fmt: skip


def transfer_failing(config: Config) -> Alert:
    """By vLLM's own names too: what could not even be posted is no transfer that ended."""
    ended = f'{config.name(table.TRANSFERS)}{{outcome!="ok"}}'
    named = f'{config.name(table.FAILURES)}{{type=~"transfer_.*|notification_failed|push_reg_notif_failed"}}'
    by = "cluster, namespace, model_name, instance, engine"
    return Alert(
        "KvlensTransferFailing", "critical", "0m", f"{grown(ended, by, '10m')}\n  or {grown(named, by, '10m')}",
        "KV transfers of {{ $labels.instance }} fail: its requests fail, are computed again, or wait for nothing.",
        "Read vLLM's failure on both engines; take the pair out of routing.",
    )  # fmt: skip


def handshake_failing(config: Config) -> Alert:
    """Without a handshake no request of the pair can be handed over."""
    failed = f'{config.name(table.HANDSHAKES)}{{outcome!="ok"}}'
    by = "cluster, namespace, model_name, instance, engine, outcome"
    return Alert(
        "KvlensHandshakeFailing", "critical", "0m", grown(failed, by, "10m"),
        "{{ $labels.instance }} cannot connect to a peer ({{ $labels.outcome }}): requests of that pair fail or wait.",
        "A hash mismatch means different versions or cache layouts; a timeout means the side channel.",
    )  # fmt: skip

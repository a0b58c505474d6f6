"""Alerts of the wire: how fast pairs are, and what the EFA devices say."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import rate_of, total
from .model import Alert

_PAIR = "cluster, namespace, model_name, engine_id, peer, direction, backend"


def transfer_rate_low(config: Config) -> Alert:
    """Even the best rate that the polls allow is too slow.

    Time between the last poll in progress and the first one done is left out: small transfers lie between two polls,
    and their rate says nothing. A pair that moves little is left out too.
    """
    moved, seconds = config.record(table.TRANSFERRED_BYTES), config.record(table.TRANSFER_SECONDS)
    certain = f"({total(_PAIR, seconds)} - {total(_PAIR, config.record(table.TRANSFER_UNCERTAIN_SECONDS))} > 0)"
    return Alert(
        "KvlensTransferRateLow", "warning", "10m",
        f"{total(_PAIR, moved)} / {certain} < {config.transfer_floor:g}\n"
        f"  and {total(_PAIR, moved)} > {config.transfer_floor / 1000:g}",
        "{{ $labels.direction }} between {{ $labels.engine_id }} and {{ $labels.peer }} over {{ $labels.backend }} "
        "moves at most {{ $value | humanize }}B/s: it may have fallen back to TCP.",
        "Compare the pair's other direction; look for the transport in the engine's log.",
    )  # fmt: skip


def retransmissions(config: Config) -> Alert:
    """Retransmitted packets alone are normal: together with transfers slower than an hour ago they are the cause."""
    prefix, by = config.efa_prefix, "cluster, instance, device"
    again, sent = rate_of(f"{prefix}retrans_pkts"), rate_of(f"{prefix}tx_pkts")
    wire = f"{config.recorded}wire_seconds:p99"
    return Alert(
        "KvlensEfaRetransmissions", "warning", "5m",
        f"{total(by, again)} / ({total(by, sent)} > 0) > {config.retransmitted_share:g}\n"
        f"  and on (cluster) {wire} > 2 * {wire} offset 1h",
        "{{ $labels.instance }} device {{ $labels.device }} retransmits {{ $value | humanizePercentage }} of its "
        "packets and the slowest transfers take twice as long as an hour ago.",
        "Compare the rails in EFA and wire; drain the host when one device stands out.",
    )  # fmt: skip

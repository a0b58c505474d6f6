"""Panels of EFA devices. Traffic is judged by tx_bytes: on some builds rdma_write_bytes never moves."""

from __future__ import annotations

from ..config import Config
from .make import Panel, make_graph, make_list

_WHERE = "instance, device"
_DEVICE = "{{instance}} {{device}}"


def _rate(config: Config, counter: str) -> str:
    return f'rate({config.efa_prefix}{counter}{{cluster=~"$cluster"}}[$__rate_interval])'


def _by_device(config: Config, counter: str) -> str:
    return f"sum by ({_WHERE}) ({_rate(config, counter)})"


def rails(config: Config) -> Panel:
    return make_graph(
        config, "Bytes sent by device",
        "The rails of one host should move together. One that stands still: check its link.",
        [(f"topk(16, {_by_device(config, 'tx_bytes')})", _DEVICE)], "Bps",
    )  # fmt: skip


def operations(config: Config) -> Panel:
    counters = ("send_bytes", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_write_bytes", "rdma_write_recv_bytes")
    return make_graph(
        config, "Bytes by operation",
        "Pull: rdma_read on D, rdma_read_resp on P. Push: rdma_write on P, or send on builds "
        "whose writes travel as sends.",
        [(f"sum ({_rate(config, counter)})", counter) for counter in counters], "Bps",
    )  # fmt: skip


def retransmitted(config: Config) -> Panel:
    part, whole = _by_device(config, "retrans_pkts"), _by_device(config, "tx_pkts")
    return make_graph(
        config, "Share of packets retransmitted, ten highest",
        "Read it beside Post and wire: only with slow transfers is it "
        "a problem. One device: drain the host.",
        [(f"topk(10, {part} / ({whole} > 0))", _DEVICE)], "percentunit",
        limits=[(config.retransmitted_share, "red")],
    )  # fmt: skip


def events(config: Config) -> Panel:
    counters = ("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events", "rx_drops")
    return make_graph(
        config, "Network events",
        "retrans_timeout: a path was given up. unresponsive: a peer is gone. impaired: a connection "
        "runs slower. rx_drops: the receiver did not keep up.",
        [(f"sum ({_rate(config, counter)})", counter) for counter in counters], "ops",
    )  # fmt: skip


def links(config: Config) -> Panel:
    return make_list(
        config, "Links by device", "1 is up, 0 can't carry traffic: drain the host.",
        f'min by (instance, device, port) ({config.efa_prefix}link_up{{cluster=~"$cluster"}})', "none",
        limits=[(1, "green")], smallest_first=True,
    )  # fmt: skip


def devices(config: Config) -> Panel:
    return make_graph(
        config, "EFA devices by host", "A step down: a device was lost.",
        [('max by (instance) (kvlens_efa_devices{cluster=~"$cluster"})', "{{instance}}")], "none",
    )  # fmt: skip

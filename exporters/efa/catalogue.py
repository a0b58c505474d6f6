"""The one table of EFA counters: kernel names, units, meaning.

Names are those of the kernel's `efa` driver below `hw_counters/` (ports: traffic and network; device: commands). The
exported name is the kernel's with a prefix, as other EFA exporters have it, so that dashboards carry over. Counters
that are not in the table are exported too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "node_amazonefa_"
DEVICE_PORT = "0"
"""Port label of counters that belong to the whole device (real ports are numbered from 1)."""

LIFESPAN = "lifespan"
"""A setting, not a counter: how long (ms) the kernel answers from its last reading of the device."""


@dataclass(frozen=True)
class Counter:
    """One kernel counter: name below `hw_counters/`, unit ("" for events and requests) and meaning."""

    name: str
    unit: str
    doc: str


COUNTERS: tuple[Counter, ...] = (
    Counter("tx_bytes", "bytes", "Bytes transmitted. Moves for every kind of traffic: build alarms on this one."),
    Counter("tx_pkts", "packets", "Packets transmitted."),
    Counter("rx_bytes", "bytes", "Bytes received."),
    Counter("rx_pkts", "packets", "Packets received."),
    Counter("rx_drops", "packets", "Packets received and then dropped."),
    Counter("send_bytes", "bytes", "Bytes sent by send operations (two-sided traffic)."),
    Counter("send_wrs", "", "Send work requests completed."),
    Counter("recv_bytes", "bytes", "Bytes received by send operations of the other side."),
    Counter("recv_wrs", "", "Receive work requests completed."),
    Counter("rdma_read_wrs", "", "RDMA read work requests completed here, as the side that reads."),
    Counter("rdma_read_bytes", "bytes", "Bytes received by RDMA reads, on the reading side (pull: the decode host)."),
    Counter("rdma_read_wr_err", "", "RDMA read work requests that failed, locally or remotely."),
    Counter("rdma_read_resp_bytes", "bytes", "Bytes sent to answer RDMA reads of others (pull: the prefill host)."),
    Counter("rdma_write_wrs", "", "RDMA write work requests completed here, as the side that writes."),
    Counter(
        "rdma_write_bytes", "bytes",
        "Bytes sent by RDMA writes, on the writing side (push: the prefill host). Stays at zero on builds where writes "
        "travel as sends; tx_bytes moves then.",
    ),
    Counter("rdma_write_wr_err", "", "RDMA write work requests that failed, locally or remotely."),
    Counter("rdma_write_recv_bytes", "bytes", "Bytes received by RDMA writes of others (push: the decode host)."),
    Counter("retrans_bytes", "bytes", "Bytes retransmitted by the device (SRD)."),
    Counter("retrans_pkts", "packets", "Packets retransmitted by the device (SRD)."),
    Counter("retrans_timeout_events", "", "Times that traffic timed out and changed its network path (SRD)."),
    Counter("unresponsive_remote_events", "", "Times that a remote connection did not respond (SRD)."),
    Counter("impaired_remote_conn_events", "", "Times that a connection became impaired, its rate limited (SRD)."),
    Counter("submitted_cmds", "", "Administrative commands submitted to the device."),
    Counter("completed_cmds", "", "Administrative commands completed by the device."),
    Counter("cmds_err", "", "Administrative commands that failed."),
    Counter("no_completion_cmds", "", "Administrative commands whose completion was missed and found by polling."),
    Counter("keep_alive_rcvd", "", "Keep-alive messages received from the device."),
    Counter("alloc_pd_err", "", "Failures to allocate a protection domain."),
    Counter("create_qp_err", "", "Failures to create a queue pair."),
    Counter("create_cq_err", "", "Failures to create a completion queue."),
    Counter("reg_mr_err", "", "Failures to register memory."),
    Counter("alloc_ucontext_err", "", "Failures to open the device for a process."),
    Counter("create_ah_err", "", "Failures to create an address handle (for instance a peer in another zone)."),
    Counter("mmap_err", "", "Failures to map device memory into a process."),
    Counter(LIFESPAN, "ms", "Setting: milliseconds for which the kernel answers from its last reading."),
)  # fmt: skip

_DOCS = {counter.name: counter.doc for counter in COUNTERS}


def describe(counter: str) -> str:
    """Return the help text of a kernel counter, a general one when the table does not know it."""
    return _DOCS.get(counter, f"Counter {counter} of the EFA driver.")


def name_metric(counter: str) -> str:
    """Return the exported name of a kernel counter; characters that a metric name cannot have become `_`."""
    return PREFIX + re.sub(r"[^a-z0-9_]", "_", counter.lower())

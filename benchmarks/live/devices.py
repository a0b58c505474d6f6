"""EFA devices that are none: the test fixtures' sysfs tree, whose counters move as those of two rails under load."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/exporters/efa"))
from trees import PORT_COUNTERS, add_efa, efa_pci, set_counters

RAILS = ("rdmap0s6", "rdmap0s7")
_PER_SECOND = {
    "tx_bytes": 200_000_000, "rx_bytes": 200_000_000, "tx_pkts": 50_000, "rx_pkts": 50_000,
    "rdma_read_bytes": 190_000_000, "rdma_read_resp_bytes": 190_000_000, "send_bytes": 1_000_000,
}  # fmt: skip
HEALTHY, CONGESTED = 2, 600
"""Packets retransmitted per second: 0.004 % and 1.2 %."""


class FixtureDevices(threading.Thread):
    """Two fixture devices below `root`; counters move once a second until `close`."""

    def __init__(self, root: Path) -> None:
        super().__init__(name="fixture-efa", daemon=True)
        self.root, self.retransmitted = root, HEALTHY
        self._stop_asked = threading.Event()
        self._values = dict.fromkeys(PORT_COUNTERS, 0)
        self._folders = [
            add_efa(root, name, efa_pci(("pci0000:00", f"0000:00:0{index + 6}.0"), 0)) / "ports/1/hw_counters"
            for index, name in enumerate(RAILS)
        ]

    def run(self) -> None:
        while not self._stop_asked.wait(1.0):
            for name, step in {**_PER_SECOND, "retrans_pkts": self.retransmitted}.items():
                self._values[name] += step
            if self.retransmitted == CONGESTED:
                self._values["retrans_timeout_events"] += 1
            for folder in self._folders:
                set_counters(folder, {**self._values, "lifespan": 10})

    def close(self) -> None:
        self._stop_asked.set()
        self.join()

"""Build sysfs trees like those of real hosts: the names, folders and texts that the kernel shows.

Device names and counts are those published for the instance types; what a test changes, it changes in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PORT_COUNTERS = (
    "tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
    "rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs",
    "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts",
    "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events", "lifespan",
)  # fmt: skip
DEVICE_COUNTERS = (
    "submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err",
    "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err", "lifespan",
)  # fmt: skip
P5EN_BUSES = ((0x55, 0x56, 0x57, 0x58), (0x6E, 0x6F, 0x70, 0x71), (0x87, 0x88, 0x89, 0x8A), (0xA0, 0xA1, 0xA2, 0xA3))


@dataclass(frozen=True)
class Pci:
    """One PCI device to make: folder names from the root complex down, NUMA node, class, ids, driver."""

    chain: tuple[str, ...]
    numa: int
    pci_class: str
    vendor: str
    device: str
    driver: str = ""

    @property
    def address(self) -> str:
        return self.chain[-1]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_pci(root: Path, pci: Pci) -> Path:
    """Make a PCI device and its link below bus/pci; return its folder."""
    folder = root / "devices" / Path(*pci.chain)
    for name, text in (("vendor", pci.vendor), ("device", pci.device), ("class", pci.pci_class)):
        write(folder / name, text)
    write(folder / "numa_node", str(pci.numa))
    if pci.driver:
        target = root / "bus/pci/drivers" / pci.driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)
    link = root / "bus/pci/devices" / pci.address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def add_infiniband(root: Path, name: str, pci: Pci, rate: str = "200 Gb/sec (2X NDR)") -> Path:
    """Make an InfiniBand device with one active port and no counters; return its folder."""
    folder = add_pci(root, pci) / "infiniband" / name
    write(folder / "fw_ver", "0.0.0.0")
    write(folder / "node_type", "6: <unspecified>")
    write(folder / "ports/1/state", "4: ACTIVE")
    write(folder / "ports/1/phys_state", "5: LinkUp")
    write(folder / "ports/1/rate", rate)
    (folder / "device").symlink_to(folder.parent.parent)
    link = root / "class/infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def set_counters(folder: Path, values: Mapping[str, int | str]) -> None:
    """Write counter files into a `hw_counters` folder."""
    for name, value in values.items():
        write(folder / name, str(value))


def add_efa(root: Path, name: str, pci: Pci, seed: int = 1, device_counters: bool = True) -> Path:
    """Make an EFA device with all counters; their values are spread by the seed so that none equals another."""
    folder = add_infiniband(root, name, pci)
    values = {counter: seed * 1_000_003 + 17 * n for n, counter in enumerate(PORT_COUNTERS)}
    set_counters(folder / "ports/1/hw_counters", {**values, "lifespan": 10})
    if device_counters:
        set_counters(
            folder / "hw_counters", {**dict.fromkeys(DEVICE_COUNTERS, 0), "submitted_cmds": seed, "lifespan": 10}
        )
    return folder


def efa_pci(chain: Iterable[str], numa: int) -> Pci:
    return Pci(tuple(chain), numa, "0x020000", "0x1d0f", "0xefa2", "efa")


def gpu_pci(chain: Iterable[str], numa: int) -> Pci:
    return Pci(tuple(chain), numa, "0x030200", "0x10de", "0x2335", "nvidia")


def build_p5en(root: Path) -> Path:
    """A P5en: four switches, each with four EFA devices and two GPUs behind it, two per NUMA node; an emulated VGA."""
    add_pci(root, Pci(("pci0000:00", "0000:00:03.0"), -1, "0x030000", "0x1d0f", "0x1111"))
    for group, buses in enumerate(P5EN_BUSES):
        numa = group // 2
        base = buses[0] - 0x11
        switch = (f"pci0000:{base:02x}", f"0000:{base:02x}:00.0", f"0000:{base + 1:02x}:00.0")
        for bus in buses:
            # Every device has its own downstream port of the switch; the switch above is what they share.
            chain = (*switch, f"0000:{base + 2:02x}:{bus - buses[0]:02x}.0", f"0000:{bus:02x}:00.0")
            add_efa(root, f"rdmap{bus}s0", efa_pci(chain, numa), seed=bus)
        for n in (1, 2):
            bus = buses[-1] + n
            add_pci(root, gpu_pci((*switch, f"0000:{base + 2:02x}:{8 + n:02x}.0", f"0000:{bus:02x}:00.0"), numa))
    return root


def build_many(root: Path, count: int = 64) -> Path:
    """A host with many EFA devices, one root port each, and eight GPUs that share only NUMA nodes with them."""
    for n in range(count):
        chain = (f"pci0000:{n:02x}", f"0000:{n:02x}:1e.0")
        add_efa(root, f"rdmap{n}s30", efa_pci(chain, n * 2 // count), seed=n + 1)
    for n in range(8):
        add_pci(root, gpu_pci((f"pci0000:{0xC0 + n:02x}", f"0000:{0xC0 + n:02x}:00.0"), n // 4))
    return root


def build_writes_as_sends(root: Path) -> Path:
    """One device on a build where RDMA writes travel as sends: write bytes stay at zero while tx_bytes moves."""
    folder = add_efa(root, "rdmap0s6", efa_pci(("pci0000:00", "0000:00:06.0"), 0), device_counters=False)
    set_counters(
        folder / "ports/1/hw_counters", {"rdma_write_bytes": 0, "rdma_write_wrs": 0, "tx_bytes": 7_000_000_000}
    )
    return root


def build_mixed(root: Path) -> Path:
    """An EFA device beside a mlx5 one, which has counters of its own and must be left out."""
    add_efa(root, "rdmap0s6", efa_pci(("pci0000:00", "0000:00:06.0"), 0))
    other = Pci(("pci0000:10", "0000:10:00.0"), 0, "0x020700", "0x15b3", "0x101b", "mlx5_core")
    folder = add_infiniband(root, "mlx5_0", other, "400 Gb/sec (4X NDR)")
    set_counters(folder / "ports/1/hw_counters", {"tx_bytes": 5, "out_of_sequence": 3})
    return root


def build_without_counters(root: Path) -> Path:
    """Two EFA devices, one of which has no hw_counters folder (an old driver)."""
    add_efa(root, "rdmap0s6", efa_pci(("pci0000:00", "0000:00:06.0"), 0))
    add_infiniband(root, "rdmap0s7", efa_pci(("pci0000:00", "0000:00:07.0"), 0))
    return root


def build_newer_driver(root: Path) -> Path:
    """A driver with counters that nobody knows yet, one of them with a name that a metric cannot have."""
    folder = add_efa(root, "efa_0", efa_pci(("pci0000:00", "0000:00:06.0"), 0))
    set_counters(folder / "ports/1/hw_counters", {"srd_paths_switched": 4, "rdma-flush.wrs": 2, "rdma_flush_wrs": 9})
    return root


BUILDERS = {
    "p5en": build_p5en,
    "64 devices": build_many,
    "writes as sends": build_writes_as_sends,
    "mlx5 beside it": build_mixed,
    "missing hw_counters": build_without_counters,
    "newer driver": build_newer_driver,
}

"""Where an EFA device sits: PCI address, NUMA node, and the accelerators next to it. Read from sysfs only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

AMAZON, EFA_DEVICE_PREFIX = "0x1d0f", "0xefa"
# PCI classes of accelerators: 3D controller, other display controller, processing accelerator. Not VGA (0x0300): on
# cloud machines that is an emulated console. Vendors of VGA-class cards that do compute are named instead.
ACCELERATOR_CLASSES = ("0x0302", "0x0380", "0x1200")
VGA_CLASS, COMPUTE_VENDORS = "0x0300", ("0x10de", "0x1002")
# Neuron devices have a vendor-specific class; the ids are those that Amazon's driver binds.
NEURON_DEVICES = ("0x7064", "0x7065", "0x7066", "0x7067", "0x7164", "0x7264", "0x7364")

_READ_BYTES = 256

PCI_SWITCH, NUMA, NONE = "pci_switch", "numa", "none"


@dataclass(frozen=True)
class PciPlace:
    """One PCI device: its address, the bridges above it from the root down, and its NUMA node (-1: unknown)."""

    address: str
    bridges: tuple[str, ...]
    numa_node: int


@dataclass(frozen=True)
class Neighbours:
    """The accelerators next to a device: PCI addresses, and what they share with it (pci_switch, numa or none)."""

    addresses: tuple[str, ...]
    proximity: str


def read_text(path: str | Path) -> str:
    """Return a small sysfs file's text without white space at its ends, "" when it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_READ_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_place(device: Path) -> PciPlace:
    """Return where a PCI device sits; `device` is its sysfs folder or a link to it."""
    real = Path(os.path.realpath(device))
    addresses = tuple(part for part in real.parts if PCI_ADDRESS.fullmatch(part))
    numa = read_text(real / "numa_node")
    return PciPlace(
        address=addresses[-1] if addresses else "",
        bridges=addresses[:-1],
        numa_node=int(numa) if re.fullmatch(r"-?\d+", numa) else -1,
    )


def is_efa(device: Path) -> bool:
    """Tell whether a PCI device is an EFA, by its driver or by its vendor and device id."""
    driver = os.path.basename(os.path.realpath(device / "driver"))
    if driver == "efa":
        return True
    return read_text(device / "vendor") == AMAZON and read_text(device / "device").startswith(EFA_DEVICE_PREFIX)


def is_accelerator(device: Path) -> bool:
    """Tell whether a PCI device is a GPU or another accelerator, by its class and ids."""
    pci_class = read_text(device / "class")
    if pci_class.startswith(ACCELERATOR_CLASSES):
        return True
    vendor = read_text(device / "vendor")
    if pci_class.startswith(VGA_CLASS):
        return vendor in COMPUTE_VENDORS
    return vendor == AMAZON and read_text(device / "device") in NEURON_DEVICES


def find_accelerators(root: Path) -> tuple[PciPlace, ...]:
    """Return all accelerators below a sysfs root, in the order of their PCI addresses."""
    try:
        names = sorted(os.listdir(root / "bus/pci/devices"))
    except OSError:
        return ()
    folders = (root / "bus/pci/devices" / name for name in names)
    return tuple(read_place(folder) for folder in folders if is_accelerator(folder))


def count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many bridges two devices share, counted from the root down."""
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def find_neighbours(place: PciPlace, accelerators: Sequence[PciPlace]) -> Neighbours:
    """Return the accelerators behind the lowest switch that a device shares with any, else those of its NUMA node."""
    shared = [count_shared(place.bridges, other.bridges) for other in accelerators]
    deepest = max(shared, default=0)
    if deepest:
        near = (other.address for other, depth in zip(accelerators, shared, strict=True) if depth == deepest)
        return Neighbours(tuple(near), PCI_SWITCH)
    near_numa = tuple(o.address for o in accelerators if place.numa_node >= 0 and o.numa_node == place.numa_node)
    return Neighbours(near_numa, NUMA if near_numa else NONE)

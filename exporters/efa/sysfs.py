"""Read the hardware counters of every EFA device and port from sysfs.

Layout: `<root>/class/infiniband/<device>/ports/<port>/hw_counters/<counter>`; newer kernels have the device's own
counters in `<device>/hw_counters/`. Devices come and go, files can be unreadable: what cannot be read is counted by
reason and left out, the rest is returned.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .catalogue import DEVICE_PORT
from .inventory import Device, Identity, Inventory
from .topology import read_text

DEFAULT_ROOT = Path("/sys")

# Why something could not be read. A fixed set: every series is there from the start, so a first error is an increase.
VANISHED, MISSING, PERMISSION, IO, PARSE = "vanished", "missing", "permission", "io", "parse"
REASONS = (VANISHED, MISSING, PERMISSION, IO, PARSE)

# A counter is one decimal number; the limit keeps a file that is none from filling memory.
_READ_BYTES = 128
_BYTES_PER_GBIT = 125_000_000


@dataclass
class PortReading:
    """What was read of one port: time (Unix ns), link state ("ACTIVE"), rate (bytes per second), counters by name.

    The port "0" holds the counters of the whole device and has no link.
    """

    device: str
    port: str
    unix_ns: int
    counters: dict[str, int] = field(default_factory=dict)
    state: str = ""
    rate: int = 0


@dataclass(frozen=True)
class Scan:
    """One pass over all devices, and the CPU time in seconds that it took."""

    devices: tuple[Device, ...]
    readings: tuple[PortReading, ...]
    cpu_seconds: float


class EfaReader:
    """Read all EFA devices below a sysfs root, again and again.

    root: where sysfs is mounted (a container may have the host's at another path).
    wall_ns: clock in Unix nanoseconds.
    `errors` counts what could not be read, by reason. Safe to call from several threads; passes do not overlap.
    """

    def __init__(self, root: str | os.PathLike[str] = DEFAULT_ROOT, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.inventory = Inventory(Path(root))
        self.errors: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        # Names of counter files; forgotten with the identity of the device, so a new driver's counters are found.
        self._names: dict[tuple[Identity, str], list[str]] = {}

    def scan(self) -> Scan:
        """Read every counter of every device once; never raises for what sysfs lacks."""
        with self._lock:
            before = time.thread_time()
            devices = self.inventory.refresh()
            readings = tuple(reading for device in devices for reading in self._read_device(device))
            self._forget(devices)
            return Scan(devices, readings, time.thread_time() - before)

    def _forget(self, devices: tuple[Device, ...]) -> None:
        present = {device.identity for device in devices}
        for key in [key for key in self._names if key[0] not in present]:
            del self._names[key]

    def _read_device(self, device: Device) -> Iterator[PortReading]:
        folder = f"{self.inventory.folder}/{device.name}"
        try:
            ports = sorted(os.listdir(f"{folder}/ports"))
        except OSError as error:
            self.errors[classify(error) if os.path.exists(folder) else VANISHED] += 1
            return
        for port in ports:
            reading = self._read_counters(device, port, f"{folder}/ports/{port}/hw_counters")
            reading.state = parse_state(read_text(f"{folder}/ports/{port}/state"))
            reading.rate = parse_rate(read_text(f"{folder}/ports/{port}/rate"))
            yield reading
        if os.path.isdir(f"{folder}/hw_counters"):
            yield self._read_counters(device, DEVICE_PORT, f"{folder}/hw_counters")

    def _read_counters(self, device: Device, port: str, path: str) -> PortReading:
        reading = PortReading(device.name, port, self._wall_ns())
        try:
            # Files are opened relative to their folder: the kernel walks the long path of links only once.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.errors[classify(error)] += 1
            return reading
        try:
            key = (device.identity, port)
            if key not in self._names:
                self._names[key] = sorted(os.listdir(folder))
            for name in self._names[key]:
                self._read_counter(reading, name, folder)
        finally:
            os.close(folder)
        return reading

    def _read_counter(self, reading: PortReading, name: str, folder: int) -> None:
        try:
            reading.counters[name] = read_number(name, folder)
        except OSError as error:
            self.errors[classify(error)] += 1
        except ValueError:
            self.errors[PARSE] += 1


def read_number(name: str, folder: int) -> int:
    """Return the number in a counter file of an open folder.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no number.
    """
    handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return int(os.read(handle, _READ_BYTES))
    finally:
        os.close(handle)


def classify(error: OSError) -> str:
    """Return the reason under which an error is counted. A device that is pulled out gives ENODEV on its open files."""
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return VANISHED
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MISSING
    if error.errno in (errno.EACCES, errno.EPERM):
        return PERMISSION
    return IO


def parse_state(text: str) -> str:
    """Return the name of a link state: "4: ACTIVE" gives "ACTIVE"."""
    return text.partition(":")[2].strip() or text


def parse_rate(text: str) -> int:
    """Return a link rate in bytes per second: "200 Gb/sec (2X NDR)" gives 25e9, "" gives 0."""
    match = re.match(r"([\d.]+)\s*Gb/sec", text)
    return round(float(match[1]) * _BYTES_PER_GBIT) if match else 0

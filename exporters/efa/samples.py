"""The sample stream of a run: EFA counters as JSON lines, and the deltas between samples.

One line per device, port and pass. Schema 1:

    {"schema": 1, "unix_ns": 1764457200000000000, "device": "rdmap85s0", "port": "1",
     "counters": {"tx_bytes": 123, ...}, "info": {...}}

`unix_ns` is taken just before the port's counters are read. `info` (PCI address, NUMA node, accelerators) is there in
the first line of each device after the start and after a re-plug, and left out otherwise. Readers ignore keys that they
do not know. History: 1, first version.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from .catalogue import LIFESPAN
from .inventory import Device, Identity
from .sysfs import EfaReader, PortReading

SCHEMA = 1
DEFAULT_MAX_BYTES = 2 * 1024**3

COUNTED, WRAPPED, RESET = "counted", "wrapped", "reset"
# The driver's counters are 64 bits wide; some firmware keeps 32. A value that fell is taken for a wrap only when it was
# in the last quarter of such a range and is now in the first, since a reset (driver reload) is the other cause.
WIDTHS = (32, 64)


@dataclass(frozen=True)
class Sample:
    """One line of the stream: time in Unix ns, counters by kernel name."""

    unix_ns: int
    device: str
    port: str
    counters: dict[str, int]


@dataclass(frozen=True)
class Delta:
    """How far one counter moved between two samples of a port (times in Unix ns).

    kind: counted; wrapped (the counter went past the end of its range, delta is right); reset (it began anew, delta is
    what it counted since then, a lower bound).
    """

    device: str
    port: str
    counter: str
    start_unix_ns: int
    end_unix_ns: int
    delta: int
    kind: str = COUNTED


def parse_samples(lines: Iterable[str]) -> tuple[list[Sample], int]:
    """Return the samples of a stream in the order of their lines, and how many lines could not be understood.

    A killed writer leaves half a line at the end; a later schema that lacks these keys is counted too.
    """
    samples, skipped = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            counters = {str(name): int(value) for name, value in record["counters"].items()}
            samples.append(Sample(int(record["unix_ns"]), str(record["device"]), str(record["port"]), counters))
        except (ValueError, KeyError, TypeError, AttributeError):
            skipped += 1
    return samples, skipped


def deltas(samples: Iterable[Sample]) -> list[Delta]:
    """Return how far every counter of every port moved from sample to sample, in time order.

    A counter that is missing in a sample is counted from its last known value, so nothing is lost. The first sample of
    a port gives no row. Samples need not be in order.
    """
    return list(walk_deltas(samples))


def walk_deltas(samples: Iterable[Sample]) -> Iterator[Delta]:
    """Yield what `deltas` returns, one by one: a long stream has millions."""
    last: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for sample in sorted(samples, key=lambda sample: sample.unix_ns):
        known = last.setdefault((sample.device, sample.port), {})
        present = {name: value for name, value in sample.counters.items() if name != LIFESPAN}
        was = {name: known[name][1] for name in present if name in known}
        for name, (delta, kind) in measure(was, present).items():
            yield Delta(sample.device, sample.port, name, known[name][0], sample.unix_ns, delta, kind)
        known.update((name, (sample.unix_ns, value)) for name, value in present.items())


def measure(was: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Return (delta, kind) of each counter known in both readings of one port.

    A reset is common to all counters of a port, a wrap is one counter's own: so a port is taken for reset when some
    counter fell that cannot have wrapped, or when every counter that had a value fell.
    """
    fell = {name: find_width(value, now[name]) for name, value in was.items() if now[name] < value}
    survived = any(value and now[name] >= value for name, value in was.items()) or len(was) == 1
    if fell and not (survived and all(fell.values())):
        return {name: (now[name], RESET) for name in was}
    moved = {name: (now[name] - value, COUNTED) for name, value in was.items()}
    moved.update((name, (now[name] - was[name] + (1 << width), WRAPPED)) for name, width in fell.items())
    return moved


def find_width(was: int, now: int) -> int:
    """Return the width in bits of the range past whose end a counter can have gone, 0 when a wrap is implausible."""
    for width in WIDTHS:
        quarter = 1 << (width - 2)
        if was < 4 * quarter:
            return width if was >= 3 * quarter and now < quarter else 0
    return 0


class SampleWriter:
    """Write the sample stream until told to stop.

    reader: where the counters come from. file: text file, opened for appending.
    max_bytes: stop when this much was written, so that a forgotten stream cannot fill a disk.
    """

    def __init__(self, reader: EfaReader, file: TextIO, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._reader = reader
        self._file = file
        self._left = max_bytes
        self._introduced: set[Identity] = set()
        self.passes = 0

    def write_pass(self) -> bool:
        """Write one line per device and port in one write; return whether there is room for another pass.

        Raises:
            OSError: the file cannot be written.
        """
        scan = self._reader.scan()
        text = "".join(self._encode(scan.devices, scan.readings))
        self._file.write(text)
        self._file.flush()
        self._left -= len(text)
        self.passes += 1
        return self._left >= len(text)

    def _encode(self, devices: Sequence[Device], readings: Sequence[PortReading]) -> Iterator[str]:
        new = {device.name: device for device in devices if device.identity not in self._introduced}
        self._introduced = {device.identity for device in devices}
        for reading in readings:
            if reading.counters:
                record = encode_reading(reading)
                if device := new.pop(reading.device, None):
                    record["info"] = encode_info(device)
                yield json.dumps(record, separators=(",", ":")) + "\n"

    def run(self, interval_s: float, stop: threading.Event, duration_s: float | None = None) -> None:
        """Write a pass every `interval_s` seconds until `stop` is set, the time is over or the size is reached.

        Passes keep to multiples of the interval, so that they do not drift; one that is late is not made up for.

        Raises:
            OSError: the file cannot be written.
        """
        due = start = time.monotonic()
        while self.write_pass():
            due = max(due + interval_s, time.monotonic())
            if duration_s is not None and due > start + duration_s:
                return
            if stop.wait(due - time.monotonic()):
                return


def encode_reading(reading: PortReading) -> dict[str, Any]:
    """Return the record of one reading."""
    return {
        "schema": SCHEMA,
        "unix_ns": reading.unix_ns,
        "device": reading.device,
        "port": reading.port,
        "counters": reading.counters,
    }


def encode_info(device: Device) -> dict[str, Any]:
    """Return what a stream says of a device."""
    return {
        "pci_address": device.place.address,
        "numa_node": device.place.numa_node,
        "gpus": list(device.neighbours.addresses),
        "gpu_proximity": device.neighbours.proximity,
        "firmware": device.firmware,
    }


def load_samples(path: Path) -> tuple[list[Sample], int]:
    """Return the samples of a file and how many lines were skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        return parse_samples(file)

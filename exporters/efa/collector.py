"""A prometheus_client collector of EFA counters, and the text file that node_exporter's textfile collector reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from .catalogue import DEVICE_PORT, LIFESPAN, PREFIX, describe, name_metric
from .inventory import Device
from .sysfs import EfaReader, PortReading, Scan

PORT_LABELS = ("device", "port")
INFO_LABELS = ("device", "port", "pci_address", "numa_node", "gpus", "gpu_proximity", "firmware", "state", "rate")
ACTIVE = "ACTIVE"


class EfaCollector(Collector):
    """Read all EFA devices at every scrape.

    reader: where the counters come from.
    total_suffix: name counters `node_amazonefa_<counter>_total` and type them as counters. Without it they have the
    names that other EFA exporters use, without a suffix, and so (a typed counter must have the suffix) no type.
    """

    def __init__(self, reader: EfaReader, *, total_suffix: bool = False) -> None:
        self._reader = reader
        self._counter = CounterMetricFamily if total_suffix else UnknownMetricFamily

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is to export is known only at a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        scan = self._reader.scan()
        yield from self._build_counters(scan.readings)
        yield from build_info(scan)
        yield from self._build_own(scan)

    def _build_counters(self, readings: Iterable[PortReading]) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | UnknownMetricFamily | GaugeMetricFamily] = {}
        for reading in readings:
            labels = (reading.device, reading.port)
            for counter, value in reading.counters.items():
                family = families.get(counter)
                if family is None:
                    kind = GaugeMetricFamily if counter == LIFESPAN else self._counter
                    family = families[counter] = kind(name_metric(counter), describe(counter), labels=PORT_LABELS)
                family.add_metric(labels, value)
        # Two kernel names that become one metric name would make the text invalid: the first one stays.
        unique: dict[str, Metric] = {}
        for family in families.values():
            unique.setdefault(family.name, family)
        yield from unique.values()

    def _build_own(self, scan: Scan) -> Iterator[Metric]:
        inventory = self._reader.inventory
        yield GaugeMetricFamily("kvlens_efa_devices", "EFA devices that the host has now.", len(scan.devices))
        changes = CounterMetricFamily(
            "kvlens_efa_device_changes", "EFA devices that came or went since the exporter started.", labels=("change",)
        )
        changes.add_metric(("added",), inventory.added)
        changes.add_metric(("removed",), inventory.removed)
        yield changes
        errors = CounterMetricFamily(
            "kvlens_efa_read_errors", "Counters and folders that could not be read, by reason.", labels=("reason",)
        )
        for reason, count in self._reader.errors.items():
            errors.add_metric((reason,), count)
        yield errors
        yield GaugeMetricFamily(
            "kvlens_efa_scan_cpu_seconds", "CPU time of reading all counters for this scrape.", scan.cpu_seconds
        )


def build_info(scan: Scan) -> Iterator[Metric]:
    """Yield what is known of each device and port besides its counters."""
    devices = {device.name: device for device in scan.devices}
    info = GaugeMetricFamily(
        f"{PREFIX}info",
        "Where a port sits: PCI address, NUMA node, accelerators next to it, firmware, link.",
        labels=INFO_LABELS,
    )
    near = GaugeMetricFamily(
        f"{PREFIX}gpu_info",
        "One series per device and accelerator next to it, for joins on the PCI address.",
        labels=("device", "gpu_pci_address", "gpu_proximity"),
    )
    up = GaugeMetricFamily(f"{PREFIX}link_up", "1 when the port's link is active.", labels=PORT_LABELS)
    rate = GaugeMetricFamily(f"{PREFIX}link_rate_bytes_per_second", "The port's nominal link rate.", labels=PORT_LABELS)
    for reading in scan.readings:
        if reading.port != DEVICE_PORT:
            info.add_metric(label_port(devices[reading.device], reading), 1)
            up.add_metric((reading.device, reading.port), float(reading.state == ACTIVE))
            rate.add_metric((reading.device, reading.port), reading.rate)
    for device in scan.devices:
        for address in device.neighbours.addresses:
            near.add_metric((device.name, address, device.neighbours.proximity), 1)
    yield from (family for family in (info, near, up, rate) if family.samples)


def label_port(device: Device, reading: PortReading) -> tuple[str, ...]:
    """Return the values of INFO_LABELS for a port."""
    return (
        device.name,
        reading.port,
        device.place.address,
        str(device.place.numa_node),
        ",".join(device.neighbours.addresses),
        device.neighbours.proximity,
        device.firmware,
        reading.state,
        f"{reading.rate * 8 / 1e9:g} Gb/s" if reading.rate else "",
    )


def render_text(collector: EfaCollector) -> bytes:
    """Return one scrape in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def write_text_file(path: Path, text: bytes) -> None:
    """Replace a file in one step, readable by all, so that a reader never sees half of it.

    Raises:
        OSError: the folder cannot be written.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        # mkstemp makes it private, but node_exporter runs as another user.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

"""Reading counters and topology from sysfs trees."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from exporters.efa import sysfs
from exporters.efa.sysfs import EfaReader, Scan
from exporters.efa.topology import NONE, NUMA, PCI_SWITCH


def read_ports(scan: Scan) -> dict[tuple[str, str], dict[str, int]]:
    return {(reading.device, reading.port): reading.counters for reading in scan.readings}


def test_p5en_has_sixteen_devices_and_all_counters(p5en: Path, trees: ModuleType) -> None:
    scan = EfaReader(p5en).scan()
    assert [device.name for device in scan.devices] == sorted(f"rdmap{b}s0" for g in trees.P5EN_BUSES for b in g)
    ports = read_ports(scan)
    assert len(ports) == 2 * 16
    assert set(ports["rdmap85s0", "1"]) == set(trees.PORT_COUNTERS)
    assert set(ports["rdmap85s0", "0"]) == set(trees.DEVICE_COUNTERS)
    assert ports["rdmap85s0", "1"]["tx_bytes"] == 0x55 * 1_000_003


def test_p5en_devices_know_the_gpus_behind_their_switch(p5en: Path) -> None:
    devices = {device.name: device for device in EfaReader(p5en).scan().devices}
    first, last = devices["rdmap85s0"], devices["rdmap163s0"]
    assert (first.place.address, first.place.numa_node) == ("0000:55:00.0", 0)
    assert (last.place.address, last.place.numa_node) == ("0000:a3:00.0", 1)
    assert first.neighbours.proximity == last.neighbours.proximity == PCI_SWITCH
    assert first.neighbours.addresses == ("0000:59:00.0", "0000:5a:00.0")
    assert last.neighbours.addresses == ("0000:a4:00.0", "0000:a5:00.0")
    assert first.neighbours == devices["rdmap88s0"].neighbours


def test_without_a_common_switch_the_numa_node_decides(tmp_path: Path, trees: ModuleType) -> None:
    devices = EfaReader(trees.build_many(tmp_path)).scan().devices
    assert len(devices) == 64
    assert {device.neighbours.proximity for device in devices} == {NUMA}
    assert {len(device.neighbours.addresses) for device in devices} == {4}


def test_no_accelerator_is_no_neighbour(tmp_path: Path, trees: ModuleType) -> None:
    (device,) = EfaReader(trees.build_writes_as_sends(tmp_path)).scan().devices
    assert device.neighbours.addresses == ()
    assert device.neighbours.proximity == NONE


def test_state_rate_and_time(p5en: Path) -> None:
    ticks = itertools.count(100)
    scan = EfaReader(p5en, wall_ns=lambda: next(ticks)).scan()
    port = scan.readings[0]
    assert (port.device, port.port, port.state, port.rate, port.unix_ns) == (
        "rdmap110s0",
        "1",
        "ACTIVE",
        25 * 10**9,
        100,
    )
    assert [reading.unix_ns for reading in scan.readings] == list(range(100, 132))


def test_foreign_devices_are_left_out(tmp_path: Path, trees: ModuleType) -> None:
    reader = EfaReader(trees.build_mixed(tmp_path))
    assert [device.name for device in reader.scan().devices] == ["rdmap0s6"]
    assert not any(reader.errors.values())


def test_efa_is_known_by_its_ids_when_no_driver_is_visible(tmp_path: Path, trees: ModuleType) -> None:
    """A container may be given the class folder without the drivers of the bus."""
    folder = trees.add_efa(tmp_path, "efa_0", trees.efa_pci(("pci0000:00", "0000:00:06.0"), 0))
    (folder / "device/driver").unlink()
    assert [device.name for device in EfaReader(tmp_path).scan().devices] == ["efa_0"]


def test_missing_hw_counters_are_counted_and_the_rest_is_read(tmp_path: Path, trees: ModuleType) -> None:
    reader = EfaReader(trees.build_without_counters(tmp_path))
    ports = read_ports(reader.scan())
    assert ports["rdmap0s7", "1"] == {}
    assert ports["rdmap0s6", "1"]["rx_drops"] > 0
    assert reader.errors[sysfs.MISSING] == 1


def test_counters_that_appear_later_are_found(tmp_path: Path, trees: ModuleType) -> None:
    reader = EfaReader(trees.build_without_counters(tmp_path))
    reader.scan()
    trees.set_counters(tmp_path / "class/infiniband/rdmap0s7/ports/1/hw_counters", {"tx_bytes": 1})
    assert read_ports(reader.scan())["rdmap0s7", "1"] == {"tx_bytes": 1}


def test_unreadable_files_are_counted_by_reason(p5en: Path, trees: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = p5en / "class/infiniband/rdmap85s0/ports/1/hw_counters"
    (counters / "tx_pkts").write_text("N/A (no PMA)\n")
    (counters / "rx_pkts").unlink()
    (counters / "rx_pkts").mkdir()
    read_number = sysfs.read_number

    def refuse(name: str, folder: int) -> int:
        # Permission bits do not stop root, which tests may run as.
        if os.path.samestat(os.fstat(folder), os.stat(counters)):
            if name == "rx_bytes":
                raise PermissionError(13, "Permission denied")
            if name == "rx_drops":
                raise OSError(19, "No such device")
        return read_number(name, folder)

    monkeypatch.setattr(sysfs, "read_number", refuse)
    reader = EfaReader(p5en)
    port = read_ports(reader.scan())["rdmap85s0", "1"]
    assert set(trees.PORT_COUNTERS) - set(port) == {"tx_pkts", "rx_pkts", "rx_bytes", "rx_drops"}
    assert reader.errors == {"parse": 1, "io": 1, "permission": 1, "vanished": 1, "missing": 0}


def test_device_unplugged_and_plugged_again(p5en: Path, trees: ModuleType) -> None:
    reader = EfaReader(p5en)
    reader.scan()
    link = p5en / "class/infiniband/rdmap85s0"
    kept = os.path.realpath(link)
    link.unlink()
    scan = reader.scan()
    assert "rdmap85s0" not in {device.name for device in scan.devices}
    assert (reader.inventory.added, reader.inventory.removed) == (0, 1)
    # The new one is another folder under the same name, with counters from zero and one more of them.
    shutil.copytree(kept, f"{kept}-new", symlinks=True)
    trees.set_counters(Path(f"{kept}-new/ports/1/hw_counters"), {"tx_bytes": 3, "new_counter": 1})
    link.symlink_to(f"{kept}-new")
    ports = read_ports(reader.scan())
    assert ports["rdmap85s0", "1"]["tx_bytes"] == 3
    assert ports["rdmap85s0", "1"]["new_counter"] == 1
    assert (reader.inventory.added, reader.inventory.removed) == (1, 1)


def test_device_that_vanishes_during_the_pass(p5en: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EfaReader(p5en)
    devices = reader.inventory.refresh()
    (p5en / "class/infiniband/rdmap110s0").unlink()
    monkeypatch.setattr(reader.inventory, "refresh", lambda: devices)
    scan = reader.scan()
    assert "rdmap110s0" not in {reading.device for reading in scan.readings}
    assert reader.errors[sysfs.VANISHED] == 1


def test_no_infiniband_at_all(tmp_path: Path) -> None:
    reader = EfaReader(tmp_path)
    assert reader.scan().devices == ()
    assert not any(reader.errors.values())


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200 Gb/sec (2X NDR)", 25 * 10**9), ("2.5 Gb/sec (1X SDR)", 312_500_000), ("", 0), ("unknown", 0)],
)
def test_rates(text: str, rate: int) -> None:
    assert sysfs.parse_rate(text) == rate

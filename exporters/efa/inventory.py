"""Which EFA devices a host has now: found below `class/infiniband`, described once, described again after a re-plug."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .topology import Neighbours, PciPlace, find_accelerators, find_neighbours, is_efa, read_place, read_text

Identity = tuple[int, int]
"""Device number and inode of a sysfs folder: another one after a re-plug, even under the same name."""


@dataclass(frozen=True)
class Device:
    """One EFA device: name, identity of its sysfs folder, place, neighbours, firmware."""

    name: str
    identity: Identity
    place: PciPlace
    neighbours: Neighbours
    firmware: str


class Inventory:
    """Keep the list of EFA devices up to date.

    folder: `<root>/class/infiniband`. `added` and `removed` count devices that came and went after the first look; a
    device that was plugged again counts as both.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "class/infiniband"
        self.added = 0
        self.removed = 0
        self._root = root
        self._seen: dict[str, Identity] | None = None
        self._devices: dict[Identity, Device] = {}

    def refresh(self) -> tuple[Device, ...]:
        """Return the present EFA devices by name; places and neighbours are read again only when something changed."""
        found = self._list_identities()
        if found != self._seen:
            self._describe(found)
        return tuple(self._devices.values())

    def _list_identities(self) -> dict[str, Identity]:
        """Return every InfiniBand device, EFA or not; one that vanishes while it is looked at is left out."""
        found = {}
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return {}
        for name in names:
            try:
                status = os.stat(self.folder / name)
            except OSError:
                continue
            found[name] = (status.st_dev, status.st_ino)
        return found

    def _describe(self, found: dict[str, Identity]) -> None:
        before, first = self._devices, self._seen is None
        accelerators = find_accelerators(self._root)
        self._devices = {}
        for name, identity in found.items():
            if is_efa(self.folder / name / "device"):
                place = read_place(self.folder / name / "device")
                firmware = read_text(self.folder / name / "fw_ver")
                neighbours = find_neighbours(place, accelerators)
                self._devices[identity] = Device(name, identity, place, neighbours, firmware)
        self._seen = found
        if not first:
            self.added += len(self._devices.keys() - before.keys())
            self.removed += len(before.keys() - self._devices.keys())

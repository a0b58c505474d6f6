"""Put a run with wrong clocks right by the truth in its manifest: what one host would have recorded.

The measure for an analysis that knows only the messages: the same events, on the machine's own clocks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import LabError
from .host_clock import OtherHost

_MOMENTS = 10**17
"""Attributes in ns above this are moments, below it lengths."""


def restore_clocks(run: Path, target: Path) -> Path:
    """Copy a run with the stamps of its engines as this machine's clocks would have made them; returns the copy.

    Raises:
        LabError: no engine of the run had a clock of its own.
    """
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    hosts = read_hosts(manifest)
    if not hosts:
        raise LabError(f"no engine of {run} had a clock of its own", "start one with `kvlens lab run --clock`")
    boot_id = find_own_boot(run, {host.boot_id for host in hosts.values()})
    (target / "traces").mkdir(parents=True)
    for name in ("client.jsonl", "manifest.json"):
        if (run / name).exists():
            shutil.copy(run / name, target / name)
    for path in sorted((run / "traces").glob("*.otlp.jsonl")):
        with path.open(encoding="utf-8") as lines, (target / "traces" / path.name).open("w", encoding="utf-8") as out:
            for line in lines:
                out.write(json.dumps(_restore_batch(json.loads(line), hosts, boot_id)) + "\n")
    return target


def read_hosts(manifest: Mapping[str, Any]) -> dict[str, OtherHost]:
    """Return the hosts that the engines of a run pretended to live on, by engine id."""
    return {engine["id"]: OtherHost(**engine["clock"]) for engine in manifest["engines"] if engine.get("clock")}


def find_own_boot(run: Path, others: set[str]) -> str:
    """Find the boot id of the machine itself: that of the router, or of an engine whose clock was left alone."""
    for path in sorted((run / "traces").glob("*.otlp.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                for resource in json.loads(line)["resourceSpans"]:
                    boot_id = _read_resource(resource)["kvlens.clock.boot_id"]["stringValue"]
                    if boot_id not in others:
                        return str(boot_id)
    raise LabError(f"no process of {run} kept the machine's own clock", "keep the spans of the router")


def to_own_unix(host: OtherHost, stamp: int) -> int:
    """Return the machine's own Unix ns of a stamp of such a host."""
    return _remove_gain(host, stamp - host.offset_ns, host.zero_unix_ns)


def to_own_perf(host: OtherHost, stamp: int) -> int:
    """Return the machine's own CLOCK_MONOTONIC of one of such a host."""
    return _remove_gain(host, stamp - host.perf_ahead_ns, host.zero_perf_ns)


def _remove_gain(host: OtherHost, stamp: int, zero: int) -> int:
    # Upwards: gain_ns rounded down.
    return zero - (zero - stamp) * 10**12 // (10**12 + round(host.drift_ppm * 1e6))


def _restore_batch(batch: dict[str, Any], hosts: Mapping[str, OtherHost], boot_id: str) -> dict[str, Any]:
    for resource in batch["resourceSpans"]:
        attributes = _read_resource(resource)
        host = hosts.get(attributes["service.instance.id"]["stringValue"])
        if host is None:
            continue
        attributes["kvlens.clock.boot_id"]["stringValue"] = boot_id
        _replace(attributes["kvlens.clock.anchor_unix_ns"], "intValue", to_own_unix, host)
        _replace(attributes["kvlens.clock.anchor_perf_ns"], "intValue", to_own_perf, host)
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            for end in ("startTimeUnixNano", "endTimeUnixNano"):
                _replace(span, end, to_own_unix, host)
            for one in span.get("attributes", ()):
                if one["key"].endswith("_ns") and int(one["value"].get("intValue", 0)) > _MOMENTS:
                    _replace(one["value"], "intValue", to_own_unix, host)
    return batch


def _read_resource(resource: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["key"]: one["value"] for one in resource["resource"]["attributes"]}


def _replace(holder: dict[str, Any], name: str, restore: Any, host: OtherHost) -> None:
    holder[name] = str(restore(host, int(holder[name])))


class TrueClocks:
    """What every clock of a run with wrong clocks showed at a moment of the machine's own CLOCK_MONOTONIC.

    As an analysis sees a clock: the boot's, with the anchor of its earliest process.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        hosts = read_hosts(json.loads((run / "manifest.json").read_text(encoding="utf-8")))
        self._hosts = {host.boot_id: host for host in hosts.values()}
        self._anchors: dict[str, tuple[int, int]] = {}
        for path in sorted((run / "traces").glob("*.otlp.jsonl")):
            with path.open(encoding="utf-8") as lines:
                for resource in json.loads(next(lines))["resourceSpans"]:
                    clock = {name: next(iter(value.values())) for name, value in _read_resource(resource).items()}
                    found = tuple(int(clock[f"kvlens.clock.anchor_{kind}_ns"]) for kind in ("perf", "unix"))
                    boot = clock["kvlens.clock.boot_id"]
                    self._anchors[boot] = min(found, self._anchors.get(boot, found))

    @property
    def boots(self) -> list[str]:
        """Return the boot ids, the machine's own included."""
        return sorted(self._anchors)

    def find_moment(self, boot: str, unix_ns: float) -> int:
        """Return the moment (ns on the machine's CLOCK_MONOTONIC) at which a clock showed a Unix time."""
        perf, unix = self._anchors[boot]
        shown = round(unix_ns) - unix + perf
        return to_own_perf(self._hosts[boot], shown) if boot in self._hosts else shown

    def read(self, boot: str, perf_ns: int) -> int:
        """Return the Unix ns that a clock showed at a moment of the machine's CLOCK_MONOTONIC."""
        perf, unix = self._anchors[boot]
        host = self._hosts.get(boot)
        return unix - perf + perf_ns + (host.perf_ahead_ns + host.gain_ns(perf_ns) if host else 0)

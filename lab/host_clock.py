"""Wrong clocks for engines: what was asked for, and the other host that an engine pretends to live on.

All of the lab runs on one machine, where processes share a wall clock, CLOCK_MONOTONIC and a boot id. `other_host`
gives an engine's processes their own: what an analysis of several hosts meets, with the truth known.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import LabError

ENV_HOST = "KVLENS_LAB_HOST"
ENV_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"
MAX_OFFSET_MS = 3_600_000.0
MAX_DRIFT_PPM = 1_000.0
EXAMPLE = "D0=+300ms or P0=-120ms,40ppm"

_PART = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)) ?(?P<unit>us|ms|s|ppm)")
_UNIT_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class HostClock:
    """How wrong a host's clocks are: the wall clock's offset (ms), and by how much both run too fast (ppm)."""

    offset_ms: float = 0.0
    drift_ppm: float = 0.0

    def __post_init__(self) -> None:
        for name, limit, unit in (("offset_ms", MAX_OFFSET_MS, "ms"), ("drift_ppm", MAX_DRIFT_PPM, "ppm")):
            value = getattr(self, name)
            if not (math.isfinite(value) and abs(value) <= limit):
                raise LabError(
                    f"a clock cannot be off by {value:g} {unit}", f"use -{limit:,.0f} to {limit:,.0f} {unit}"
                )


@dataclass(frozen=True)
class OtherHost:
    """The host that an engine's processes pretend to live on.

    Attributes:
        offset_ms, drift_ppm: see HostClock; the drift counts from zero_perf_ns on.
        zero_unix_ns, zero_perf_ns: one true moment on this machine's wall clock and CLOCK_MONOTONIC.
        perf_ahead_ns: what the host's CLOCK_MONOTONIC is ahead at that moment: it booted at another time.
        boot_id, name: the host's own.
    """

    offset_ms: float
    drift_ppm: float
    zero_unix_ns: int
    zero_perf_ns: int
    perf_ahead_ns: int
    boot_id: str
    name: str

    @property
    def offset_ns(self) -> int:
        """What the wall clock is ahead at the zero moment."""
        return round(self.offset_ms * 1e6)

    def gain_ns(self, perf_ns: int) -> int:
        """Return what its clocks have gained at a moment of this machine's CLOCK_MONOTONIC."""
        # In integers: a float holds no stamp to the ns, and time must never run backwards.
        return (perf_ns - self.zero_perf_ns) * round(self.drift_ppm * 1e6) // 10**12

    def to_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return what tells an engine's processes; a host.name that the caller's environment sets stays."""
        attributes = base.get(ENV_ATTRIBUTES, "")
        if "host.name=" not in attributes:
            attributes = ",".join(filter(None, (attributes, f"host.name={self.name}")))
        return {ENV_HOST: json.dumps(asdict(self), sort_keys=True), ENV_ATTRIBUTES: attributes}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> OtherHost | None:
        """Return the host that this process is to live on; None for this machine."""
        value = environ.get(ENV_HOST)
        return cls(**json.loads(value)) if value else None


def make_host(clock: HostClock, name: str) -> OtherHost:
    """Make up a host with such a clock; its drift counts from now on."""
    return OtherHost(
        **asdict(clock), zero_unix_ns=time.time_ns(), zero_perf_ns=time.perf_counter_ns(),
        perf_ahead_ns=random.randrange(10**12, 10**15), boot_id=str(uuid.uuid4()), name=name,
    )  # fmt: skip


def parse_clocks(values: Sequence[str]) -> dict[str, HostClock]:
    """Return the clocks of ``ENGINE=OFFSET[,DRIFT]`` arguments, like P0=-120ms,40ppm.

    Raises:
        LabError: one cannot be read, or an engine is named twice.
    """
    clocks: dict[str, HostClock] = {}
    for value in values:
        engine, _, text = value.partition("=")
        if engine.strip() in clocks:
            raise LabError(f"two clocks for {engine.strip()}", "give each engine one", exit_code=2)
        try:
            clocks[engine.strip()] = parse_clock(text)
        except LabError as error:
            raise LabError(f"cannot read clock {value!r}: {error.message}", error.remedy, exit_code=2) from None
    return clocks


def parse_clock(text: str) -> HostClock:
    """Return the clock of ``OFFSET[,DRIFT]``: an offset in us, ms or s, a drift in ppm, either one alone or both."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise LabError(f"{part.strip()!r} is no offset and no drift", f"write it as {EXAMPLE}")
        unit = match["unit"]
        name = "drift_ppm" if unit == "ppm" else "offset_ms"
        if name in found:
            raise LabError(f"it has two of {name}", f"write it as {EXAMPLE}")
        found[name] = float(match["number"]) * _UNIT_MS.get(unit, 1.0)
    return HostClock(**found)


def place_engines(clocks: Mapping[str, HostClock | str], engines: Collection[str]) -> dict[str, OtherHost]:
    """Return the hosts of the engines that have a clock of their own.

    Raises:
        LabError: an engine that the pair does not have, or a clock that cannot be read.
    """
    if unknown := [engine for engine in clocks if engine not in engines]:
        raise LabError(
            f"a clock for {unknown[0]!r}, which is no engine", f"use one of: {', '.join(engines)}", exit_code=2
        )
    parsed = {engine: parse_clock(clock) if isinstance(clock, str) else clock for engine, clock in clocks.items()}
    return {engine: make_host(clock, f"host-of-{engine}") for engine, clock in parsed.items()}


def describe_host(host: OtherHost | None) -> dict[str, Any] | None:
    """Return what the manifest says of an engine's host: the truth that an analysis is held against."""
    return asdict(host) if host else None

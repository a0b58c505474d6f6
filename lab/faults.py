"""Which faults are on: a small JSON file that engines and router re-read while they run.

    {"wire": {"ms": 80, "engine": "prefill", "rank": null, "every": 1}}

`engine` is a role (prefill, decode) or an engine id, null for any; `rank` a tensor-parallel rank, null for any; `every`
lets only each n-th occurrence through. The sites themselves are in `fault_sites` (engines) and `router`.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import LabError

logger = logging.getLogger("lab.faults")

ENV_FILE = "KVLENS_LAB_FAULT_FILE"
ENV_ROLE = "KVLENS_LAB_ROLE"
ENV_ENGINE = "KVLENS_LAB_ENGINE"

# A stat costs about 1 us; a look at the monotonic clock a tenth of that, so hot sites stat at most this often.
_CHECK_INTERVAL_NS = 10_000_000

SITES: dict[str, str] = {
    "prefill_compute": "sleep in the model execution of every step that computes prompt tokens on P",
    "router_dispatch": "router: before the D leg (pull), before both legs (push)",
    "router_decode_leg": "router: send the D leg later",
    "pairing": "another name of router_decode_leg: in push the registration comes late to the pairing",
    "decode_admission": "D's scheduler answers 'not yet' until this long after it first saw the request",
    "registration": "D's send_notif of a push registration blocks",
    "dispatch": "the worker waits before it prepares the transfer (push: writer thread; pull: engine thread)",
    "post": "agent.transfer blocks before the transfer is submitted",
    "transfer_error": "agent.transfer raises, after this long: a read or write that cannot be posted",
    "wire": "the bytes leave this much later; check_xfer_state answers PROC until then",
    "completion": "push: D sees completion notifications later; pull: the worker reports finished reads later",
    "first_decode": "sleep in D's model execution of a step in which a request runs for the first time",
    "telemetry": "kvlens's own code fails when a request arrives (swallowed and counted; ms is of no account)",
}


@dataclass(frozen=True)
class Fault:
    """A delay of `ms` milliseconds at one site, limited to an engine (role or id), a rank, each n-th occurrence."""

    ms: float
    engine: str | None = None
    rank: int | None = None
    every: int = 1


class FaultFile:
    """The faults that are on now; follows the file when it changes, empty when there is none.

    Args:
        path: the file; None for no faults ever.
        names: what this process answers to in a fault's `engine` (role, engine id).
        check_interval_ns: least time between two looks at the file.
    """

    def __init__(
        self, path: Path | None, names: tuple[str, ...] = (), check_interval_ns: int = _CHECK_INTERVAL_NS
    ) -> None:
        self._path = path
        self._names = frozenset(names)
        self._check_interval_ns = check_interval_ns
        self._next_check_ns = 0
        self._version: tuple[int, int, int] | None = None
        self._faults: dict[str, Fault] = {}
        self._counts: dict[str, int] = {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FaultFile:
        """Return the faults of this process as the lab set it up."""
        path = environ.get(ENV_FILE)
        names = tuple(filter(None, (environ.get(ENV_ROLE), environ.get(ENV_ENGINE))))
        return cls(Path(path) if path else None, names)

    def delay_s(self, site: str, rank: int | None = None) -> float:
        """Return the seconds to delay at this occurrence of a site; 0 when nothing is to happen."""
        self._follow()
        if not self._faults:
            return 0.0
        fault = self._faults.get(site)
        if fault is None or (fault.rank is not None and rank is not None and fault.rank != rank):
            return 0.0
        if fault.engine is not None and fault.engine not in self._names:
            return 0.0
        count = self._counts[site] = self._counts.get(site, 0) + 1
        return fault.ms / 1000.0 if count % max(1, fault.every) == 0 else 0.0

    def is_on(self, site: str) -> bool:
        """Return whether the site has a fault, without counting an occurrence."""
        self._follow()
        return site in self._faults

    def any_on(self) -> bool:
        """Return whether any fault is on."""
        self._follow()
        return bool(self._faults)

    def is_role(self, name: str) -> bool:
        """Return whether this process answers to a role or engine id."""
        return name in self._names

    def _follow(self) -> None:
        now = time.perf_counter_ns()
        if now < self._next_check_ns or self._path is None:
            return
        self._next_check_ns = now + self._check_interval_ns
        try:
            stat = os.stat(self._path)
        except OSError:
            self._version, self._faults = None, {}
            return
        version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if version != self._version:
            self._version, self._counts = version, {}
            self._faults = _load(self._path)


def write_faults(path: Path, faults: Mapping[str, Fault | Mapping[str, Any] | float]) -> None:
    """Replace the fault file in one step (a reader never sees half of it).

    Args:
        path: the file that the processes follow.
        faults: per site a Fault, its fields as a mapping, or just the milliseconds.

    Raises:
        LabError: unknown site, or a delay that is not a positive number.
    """
    value = {site: asdict(_as_fault(site, fault)) for site, fault in faults.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".faults-", delete=False, encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)
    os.replace(file.name, path)


def _as_fault(site: str, value: Fault | Mapping[str, Any] | float) -> Fault:
    if site not in SITES:
        raise LabError(f"there is no fault site {site!r}", f"use one of: {', '.join(SITES)}")
    try:
        if isinstance(value, Fault):
            fault = value
        else:
            fault = Fault(**value) if isinstance(value, Mapping) else Fault(ms=float(value))
    except (TypeError, ValueError) as error:
        raise LabError(f"fault {site}: {error}", 'write it as {"ms": 80} with optional engine, rank, every') from None
    if not fault.ms > 0:
        raise LabError(f"fault {site}: ms must be above 0, not {fault.ms}", "leave the site out to clear it")
    return fault


def _load(path: Path) -> dict[str, Fault]:
    """Return the file's faults; a file that cannot be read means none, said in the log."""
    try:
        content = json.loads(path.read_text(encoding="utf-8") or "{}")
        return {str(site): _as_fault(str(site), value) for site, value in content.items()}
    except (OSError, ValueError, AttributeError, LabError) as error:
        logger.error("ignoring fault file %s: %s", path, error)
        return {}

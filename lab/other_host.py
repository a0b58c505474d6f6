"""Lets this process live on another host as far as clocks go: its wall clock, its CLOCK_MONOTONIC, its boot id.

Only what two hosts compare is changed: `time.time` and `time.perf_counter` (what vLLM, its NIXL connector and kvlens
stamp with; the connector sends perf_counter readings to its peers). `time.monotonic` stays, since it never leaves a
process and waits that have begun would end wrongly; so do `datetime.now` and C code, none of whose stamps is recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from .errors import LabError
from .host_clock import OtherHost

_READER = "instrumented_connectors"


def move_to_host(host: OtherHost) -> None:
    """Replace this process's clocks and boot id, once; before anything of kvlens is loaded, which binds clocks.

    Raises:
        LabError: kvlens was loaded already.
    """
    if getattr(time.perf_counter_ns, "kvlens_lab", False):
        return
    if early := [name for name in sys.modules if name.partition(".")[0] == _READER]:
        raise LabError(f"{early[0]} was loaded before its process got another clock", "load lab.plugin first")
    for name, read_ns in make_clocks(host, time.time_ns, time.perf_counter_ns).items():
        setattr(time, f"{name}_ns", _mark(read_ns))
        setattr(time, name, _mark(_in_seconds(read_ns)))
    from instrumented_connectors import clock

    clock.read_boot_id = lambda *_: host.boot_id


def make_clocks(
    host: OtherHost, wall_ns: Callable[[], int], perf_ns: Callable[[], int]
) -> dict[str, Callable[[], int]]:
    """Return the host's wall clock and CLOCK_MONOTONIC (ns) as made of this machine's."""
    offset, ahead, gain = host.offset_ns, host.perf_ahead_ns, host.gain_ns

    def read_wall() -> int:
        return wall_ns() + offset + gain(perf_ns())

    def read_perf() -> int:
        now = perf_ns()
        return now + ahead + gain(now)

    return {"time": read_wall, "perf_counter": read_perf}


def _in_seconds(read_ns: Callable[[], int]) -> Callable[[], float]:
    return lambda: read_ns() / 1e9


def _mark(function: Callable[[], float]) -> Callable[[], float]:
    setattr(function, "kvlens_lab", True)  # noqa: B010
    return function

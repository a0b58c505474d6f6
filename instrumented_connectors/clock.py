"""One clock per process: monotonic stamps, anchored once to wall time.

Every event is stamped with ``time.perf_counter_ns``. A single anchor, read when the process starts to record, maps a
stamp to Unix time. The anchor is exported with the spans, so that processes which share a boot (and so CLOCK_MONOTONIC)
can be aligned exactly, and others can be corrected from message pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ANCHOR_READS = 5


class Clock:
    """Map monotonic stamps (ns) to Unix time (ns).

    Args:
        perf_ns: monotonic clock in nanoseconds.
        unix_ns: wall clock in nanoseconds since 1970.
        boot_id: identity of the monotonic clock's epoch; read from the kernel when not given, "" when unknown.
    """

    __slots__ = ("anchor_perf_ns", "anchor_unix_ns", "boot_id", "perf_ns")

    def __init__(
        self,
        perf_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        boot_id: str | None = None,
    ) -> None:
        self.perf_ns = perf_ns
        self.anchor_perf_ns, self.anchor_unix_ns = _read_anchor(perf_ns, unix_ns)
        self.boot_id = read_boot_id() if boot_id is None else boot_id

    def to_unix(self, perf: int) -> int:
        """Return the Unix time (ns) of a monotonic stamp (ns)."""
        return perf - self.anchor_perf_ns + self.anchor_unix_ns

    def wall_ns(self) -> int:
        """Return the present Unix time (ns) on this process's anchored clock."""
        return self.to_unix(self.perf_ns())


def _read_anchor(perf_ns: Callable[[], int], unix_ns: Callable[[], int]) -> tuple[int, int]:
    """Pair both clocks, keeping the reading with the least time between its two monotonic stamps."""
    best: tuple[int, int, int] | None = None
    for _ in range(_ANCHOR_READS):
        before = perf_ns()
        wall = unix_ns()
        width = perf_ns() - before
        if best is None or width < best[0]:
            best = (width, before + width // 2, wall)
    assert best is not None
    return best[1], best[2]


def read_boot_id(path: Path = _BOOT_ID) -> str:
    """Return the kernel's boot id, or "" where there is none (not Linux)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

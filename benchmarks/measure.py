"""Time small pieces of code in blocks and describe the machine that they ran on."""

from __future__ import annotations

import gc
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns


@dataclass(frozen=True)
class Cost:
    """Nanoseconds per call: median and 99th percentile over blocks of calls."""

    median_ns: float
    p99_ns: float
    blocks: int
    per_block: int

    def __str__(self) -> str:
        figures = f"median {self.median_ns / 1000:8.3f} us   p99 {self.p99_ns / 1000:8.3f} us"
        return f"{figures}   ({self.blocks} blocks of {self.per_block})"


def time_calls(
    call: Callable[[], object], *, blocks: int = 400, per_block: int = 200, between: Callable[[], object] = lambda: None
) -> Cost:
    """Time `call` in blocks, the loop's own cost taken off; `between` runs untimed after each block.

    Single calls of this size are below what a clock read resolves, so the percentile is over block means.
    """
    loop = range(per_block)
    empty = []
    for _ in range(50):
        start = perf_counter_ns()
        for _ in loop:
            pass
        empty.append((perf_counter_ns() - start) / per_block)
    overhead = statistics.median(empty)
    for _ in loop:
        call()
    between()
    costs = []
    gc.collect()
    for _ in range(blocks):
        start = perf_counter_ns()
        for _ in loop:
            call()
        costs.append((perf_counter_ns() - start) / per_block - overhead)
        between()
    costs.sort()
    return Cost(statistics.median(costs), costs[int(0.99 * (blocks - 1))], blocks, per_block)


def describe_machine() -> str:
    """Return processor, cores, kernel and Python in one line."""
    model = platform.processor() or "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = (line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line)
        model = next(named, model)
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"

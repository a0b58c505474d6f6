"""Print how loading and breaking down grow with the number of synthetic requests (not a test: figures of this machine).

python tests/analysis/scale_breakdown.py 10000 30000 100000
"""

import math
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from span_builder import MS, Request, World, add_request, pull_times, push_times

from analysis.breakdown import break_down
from analysis.render.json import render_json
from analysis.source import open_session


def write_run(directory: Path, count: int, seed: int = 1) -> int:
    """Write count requests, half pull and half push, in batches of 512 spans per line; returns the number of spans."""
    draw = random.Random(seed)
    spans = 0
    worlds = {"pull": (World("pull"), pull_times), "push": (World("push"), push_times)}
    for mode, (world, make) in worlds.items():
        for number in range(count // 2):
            times, _ = make(
                number * 50 * MS, prefill_compute=draw.uniform(5, 500), wire=draw.uniform(1, 30),
                d_ingress=draw.uniform(1, 100), registration=draw.uniform(1, 50),
            )  # fmt: skip
            request = Request(f"{mode}-{number}", suffix=f"{number:08x}", prompt_tokens=draw.randrange(20, 20_000))
            add_request(world, request, times)
            if number % 2000 == 1999:
                spans += flush(world, directory)
        spans += flush(world, directory)
    return spans


def flush(world: World, directory: Path) -> int:
    """Append what a world holds and forget it."""
    world.write(directory, per_line=512)
    processes = (world.router, world.prefill, world.decode)
    count = sum(len(process.spans) for process in processes)
    for process in processes:
        process.spans.clear()
    return count


def measure(count: int) -> tuple[int, float, float, float, float]:
    """Return spans, seconds of import, breakdown and JSON, and CPU seconds of the first two."""
    with tempfile.TemporaryDirectory() as folder:
        spans = write_run(Path(folder) / "traces", count)
        begin, used = time.perf_counter(), time.process_time()
        with open_session([Path(folder)]) as session:
            loaded = time.perf_counter()
            result = break_down(session)
            broken, used = time.perf_counter(), time.process_time() - used
            assert result.budgets.height == count
            assert int(result.budgets["residual"].abs().max()) == 0
            render_json([result])
            written = time.perf_counter()
    return spans, loaded - begin, broken - loaded, written - broken, used


def main() -> None:
    before = None
    for count in [int(text) for text in sys.argv[1:]] or [10_000, 30_000, 100_000]:
        spans, load, breakdown, dump, used = measure(count)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        growth = ""
        if before:
            exponent = math.log(used / before[1]) / math.log(count / before[0])
            growth = f", growth exponent of CPU {exponent:.2f}"
        print(
            f"{count} requests, {spans} spans: import {load:.2f} s ({spans / load:,.0f} spans/s),"
            f" breakdown {breakdown:.2f} s, JSON {dump:.2f} s, CPU {used:.2f} s, peak {peak:.2f} GB{growth}",
            flush=True,
        )
        before = (count, used)


if __name__ == "__main__":
    main()

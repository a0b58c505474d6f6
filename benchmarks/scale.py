"""Import and breakdown of synthetic span sets: time and memory by size, growth, and a peer doing the same aggregation.

python -m benchmarks.scale --spans 1000000,3000000,10000000    (the last one takes 25 GB of disk and 10 minutes)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEFAULT_SPANS = (100_000, 300_000)
SPANS_PER_REQUEST = 21.8
"""Of the default synthetic fleet: half push, half pull, two ranks."""

AGGREGATION = """
SELECT leg, minIf(own_begin, name IN ('prefill', 'prefill.queue', 'decode', 'decode.admission')) AS start,
    maxIf(own_begin + took, name = 'decode.remote_wait') AS told,
    maxIf(own_begin + took, name IN ('prefill.queue', 'decode.queue')) AS sched,
    maxIf(own_begin + took, name IN ('prefill.compute', 'decode.first_step')) AS first,
    maxIf(own_begin + took, name = 'decode') AS ended
FROM kvlens_spans
WHERE name IN ('prefill', 'prefill.queue', 'prefill.compute', 'decode', 'decode.admission', 'decode.remote_wait',
    'decode.queue', 'decode.first_step')
GROUP BY leg
"""
STARTS = ["prefill", "prefill.queue", "decode", "decode.admission"]
SCHEDULED = ["prefill.queue", "decode.queue"]
FIRST = ["prefill.compute", "decode.first_step"]


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Run something; returns its result, and wall and CPU seconds of this process."""
    wall, used = time.perf_counter(), cpu_s()
    result = work()
    return result, {"wall": time.perf_counter() - wall, "cpu": cpu_s() - used}


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def step_import(run: Path, database: Path) -> dict[str, Any]:
    from analysis.load import load_files
    from analysis.run import find_run
    from analysis.sources import read_address

    done, took = timed(lambda: load_files(find_run([run]).files, read_address(f"chdb:{database}"), 14))
    return {**took, "spans": done.new_spans, "peak_gb": peak_gb()}


def step_breakdown(run: Path, database: Path) -> dict[str, Any]:
    from analysis.breakdown import break_down
    from analysis.sources import open_source

    def work() -> Any:
        with open_source(f"chdb:{database}") as session:
            return break_down(session)

    result, took = timed(work)
    return {**took, "requests": result.budgets.height, "peak_gb": peak_gb()}


def step_peer(run: Path, database: Path) -> dict[str, Any]:
    """The aggregation at the heart of it, by leg, over the same columns: chDB from files, the others from memory."""
    import polars as pl

    from analysis.sources import read_address
    from exporters.clickhouse.database import open_database

    source = open_database(read_address(f"chdb:{database}"))
    source.fetch("SELECT count() FROM kvlens_spans")
    ours, chdb = timed(lambda: source.fetch(AGGREGATION))
    table = source.fetch(
        "SELECT leg, toString(name) AS name, own_begin AS begin, own_begin + took AS finish FROM kvlens_spans"
    )
    source.close()
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame = frame.with_columns(pl.col("name").cast(pl.Categorical))
    names = [*STARTS, *SCHEDULED, *FIRST, "decode.remote_wait", "decode"]

    def by_polars() -> pl.DataFrame:
        name, finish = pl.col("name"), pl.col("finish")
        return frame.lazy().filter(name.is_in(names)).group_by("leg").agg(
            start=pl.col("begin").filter(name.is_in(STARTS)).min(),
            told=finish.filter(name == "decode.remote_wait").max(),
            sched=finish.filter(name.is_in(SCHEDULED)).max(), first=finish.filter(name.is_in(FIRST)).max(),
            ended=finish.filter(name == "decode").max(),
        ).collect()  # fmt: skip

    theirs, polars = timed(by_polars)
    mine = pl.from_arrow(ours)
    assert isinstance(mine, pl.DataFrame)
    same = mine.sort("leg").equals(theirs.fill_null(0).sort("leg").select(mine.columns))
    pandas_frame = frame.to_pandas()

    def by_pandas() -> Any:
        rows = pandas_frame[pandas_frame["name"].isin(names)]
        pieces = {
            "start": rows[rows["name"].isin(STARTS)].groupby("leg")["begin"].min(),
            "told": rows[rows["name"] == "decode.remote_wait"].groupby("leg")["finish"].max(),
            "sched": rows[rows["name"].isin(SCHEDULED)].groupby("leg")["finish"].max(),
            "first": rows[rows["name"].isin(FIRST)].groupby("leg")["finish"].max(),
            "ended": rows[rows["name"] == "decode"].groupby("leg")["finish"].max(),
        }
        import pandas as pd

        return pd.DataFrame(pieces)

    _, pandas = timed(by_pandas)
    return {"chdb": chdb, "polars": polars, "pandas": pandas, "same": same, "legs": mine.height}


STEPS = {"import": step_import, "breakdown": step_breakdown, "peer": step_peer}


def in_own_process(step: str, run: Path, database: Path) -> dict[str, Any]:
    """Run a step in a process of its own, so that peak memory is the step's."""
    command = [sys.executable, "-m", "benchmarks.scale", "--step", step, str(run), str(database)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError(f"{step} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(spans: int, folder: Path) -> dict[str, Any]:
    from analysis.synthetic.parameters import Fault, Parameters
    from analysis.synthetic.write import write_run

    run, database = folder / "run", folder / "db"
    faults = (Fault("wire", 200, 0.01), Fault("registration", 80, 0.01))
    requests = round(spans / SPANS_PER_REQUEST)
    written, made = timed(lambda: write_run(Parameters(requests=requests, drop=0.005, kills=1, faults=faults), run))
    results = {"spans": written.spans, "bytes": written.bytes, "made": made}
    results["import"] = in_own_process("import", run, database)
    shutil.rmtree(run / "traces")
    results["breakdown"] = in_own_process("breakdown", run, database)
    results["peer"] = in_own_process("peer", run, database)
    return results


def show(found: dict[str, Any], before: dict[str, Any] | None) -> None:
    spans, load, broken, peer = found["spans"], found["import"], found["breakdown"], found["peer"]
    print(
        f"  {spans:>10,} spans ({found['bytes'] / 1e9:.2f} GB of JSON, made in {found['made']['wall']:.0f} s): "
        f"import {load['wall']:.1f} s = {spans / load['wall']:,.0f} spans/s "
        f"(CPU {load['cpu'] / spans * 1e6:.1f} us/span, peak {load['peak_gb']:.2f} GB), "
        f"breakdown of {broken['requests']:,} requests {broken['wall']:.1f} s "
        f"(CPU {broken['cpu']:.1f} s, peak {broken['peak_gb']:.2f} GB)"
    )
    chdb = peer["chdb"]
    others = ", ".join(
        f"{name} {peer[name]['wall']:.2f} s ({peer[name]['wall'] / chdb['wall']:.1f}x; CPU {peer[name]['cpu']:.2f} s)"
        for name in ("polars", "pandas")
    )
    same = "the same rows" if peer["same"] else "DIFFERENT rows"
    print("             aggregation by leg (chDB from files, the others from Arrow in memory): ", end="")
    print(f"chDB {chdb['wall']:.2f} s (CPU {chdb['cpu']:.2f} s), {others}; {same}")
    if before:
        factor = math.log(spans / before["spans"])
        growth = {
            f"{step} {kind}": math.log(found[step][kind] / before[step][kind]) / factor
            for step in ("import", "breakdown")
            for kind in ("wall", "cpu")
        }
        print("             growth exponent: " + ", ".join(f"{name} {value:.2f}" for name, value in growth.items()))


def run(sizes: tuple[int, ...] = DEFAULT_SPANS) -> None:
    before = None
    for spans in sizes:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="kvlens-scale-") as folder:
            found = measure(spans, Path(folder))
        print(f"  load average {load:.1f} before, {os.getloadavg()[0]:.1f} after (alone it would be about 2)")
        show(found, before)
        before = found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", default=",".join(map(str, DEFAULT_SPANS)), help="sizes, separated by commas")
    parser.add_argument("--step", nargs=3, metavar=("STEP", "RUN", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        name, path, database = options.step
        print(json.dumps(STEPS[name](Path(path), Path(database))))
        return
    run(tuple(int(text) for text in options.spans.split(",")))


if __name__ == "__main__":
    main()

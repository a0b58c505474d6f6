"""Is the threshold curve right? One run's prediction for two other thresholds beside what these then measured.

Runs are taken from KVLENS_THRESHOLD_RUNS (default runs/threshold) and recorded there when missing, about two minutes
each; the machine should have nothing else to do meanwhile. The base run is repeated: what two equal runs differ by is
the least that a prediction can be off by.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from analysis.compare.estimate import Estimate, estimate_pairs

from .lab_runs import kvlens, record

BASE, OTHERS = 256, (0, 100_000)
"""The threshold that is recorded, and those that are predicted: always fetch, never fetch."""
WORKLOAD = [
    "--mode", "bidirectional", "--requests", "10", "--concurrency", "1", "--turns", "4", "--output-len", "8",
    "--input-lens", "40,90,150,400,900", "--turn-tokens", "40", "--seed", "41",
]  # fmt: skip
SEED = 20261130


def run() -> None:
    """Record what is missing; print predictions beside measurements."""
    folder = Path(os.environ.get("KVLENS_THRESHOLD_RUNS", "runs/threshold"))
    base = folder / str(BASE)
    for name, threshold in {str(BASE): BASE, **{str(one): one for one in OTHERS}, "again": BASE}.items():
        record(folder / name, [*WORKLOAD, "--threshold", str(threshold)])
    document = json.loads(subprocess.run(kvlens("decisions", base, "--json"), check=True, capture_output=True).stdout)
    curve, reasons = document["threshold"], document["reasons"]
    print(f"  workload: {' '.join(WORKLOAD)}; recorded with threshold {BASE}")
    decided = ", ".join(f"{row['reason']} {row['requests']}" for row in reasons)
    print(f"  decisions: {decided}")
    print(f"  {curve['conclusion']}")
    print(f"  two runs with threshold {BASE}: mean TTFT {word(measure(base, folder / 'again'))}")
    for threshold in OTHERS:
        point = find_point(curve["curve"], threshold)
        found = measure(base, folder / str(threshold))
        print(
            f"  threshold {threshold}: mean TTFT change predicted {point['change_ms']:+.1f} ms "
            f"({point['low_ms']:+.1f} to {point['high_ms']:+.1f}), measured {word(found)}; "
            f"off by {point['change_ms'] - found.difference:+.1f} ms"
        )


def find_point(curve: list[dict[str, Any]], threshold: int) -> dict[str, Any]:
    """Return the curve's interval that a threshold lies in."""
    return next(
        point for point in curve if point["low"] <= threshold and (point["high"] is None or threshold <= point["high"])
    )


def measure(base: Path, other: Path) -> Estimate:
    """Compare what the clients measured, request by request, in the order of time."""
    first, second = read_ttft(base), read_ttft(other)
    keys = [key for key in first if key in second]
    pair = (np.array([side[key] for key in keys], dtype=np.float64) for side in (first, second))
    return estimate_pairs(*pair, 0.95, np.random.default_rng(SEED))


def read_ttft(run_directory: Path) -> dict[str, float]:
    """Return each served request's TTFT (ms) by its id."""
    lines = (run_directory / "client.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {one["request_id"]: one["ttft_ms"] for one in records if one["status"] == "ok"}


def word(found: Estimate) -> str:
    """Return a measured change in words."""
    return f"{found.difference:+.1f} ms ({found.low:+.1f} to {found.high:+.1f})"

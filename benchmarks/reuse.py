"""Turn after turn: TTFT, prefill compute and readback with reuse on, off, and ordinary prefix caching, on real engines.

The same seeded conversations go to four pairs. Runs are taken from KVLENS_REUSE_RUNS (default runs/reuse) and recorded
there when missing, about two minutes each; the machine should have nothing else to do meanwhile.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import polars as pl

from analysis.reuse.conversations import report_conversations
from analysis.source import open_session

from .lab_runs import kvlens, record

WORKLOAD = [
    "--requests", "6", "--concurrency", "2", "--turns", "5", "--input-lens", "600,1000", "--turn-tokens", "250",
    "--output-len", "32", "--seed", "31", "--gap", "0.5", "--gaps", "exponential",
]  # fmt: skip
SETTINGS = {
    "no-reuse": ["--mode", "pull", "--no-prefix-caching"],
    "readback": ["--mode", "bidirectional", "--no-prefix-caching"],
    "prefix-caching": ["--mode", "pull", "--prefix-caching"],
    "both": ["--mode", "bidirectional", "--prefix-caching"],
}
FIGURES = {"TTFT": "ttft", "prefill compute": "seg_prefill_compute", "readback": "seg_readback"}


def run() -> None:
    """Record what is missing; print each turn's medians beside each other, then the runs' own comparison."""
    folder = Path(os.environ.get("KVLENS_REUSE_RUNS", "runs/reuse"))
    for name, options in SETTINGS.items():
        record(folder / name, [*options, *WORKLOAD])
    print(f"  workload: {' '.join(WORKLOAD)}")
    print_turns({name: read_growth(folder / name) for name in SETTINGS})
    base, *others = (folder / name for name in SETTINGS)
    against = [part for other in others for part in ("--against", other)]
    subprocess.run(kvlens("conversations", base, *against, "--show", "0"), check=True)


def read_growth(run_directory: Path) -> pl.DataFrame:
    """Return a run's medians by turn."""
    with open_session([run_directory]) as session:
        return report_conversations(session).growth


def print_turns(growth: dict[str, pl.DataFrame]) -> None:
    """Print the median of every turn, ms: one block per figure, one column per setting."""
    first = next(iter(growth.values()))
    for figure, column in FIGURES.items():
        print(f"  {figure + ', median ms':28}" + "".join(f"{name:>16}" for name in growth))
        for turn, context in first.select("turn", "context").iter_rows():
            cells = [rows.filter(pl.col("turn") == turn)[column].to_list() for rows in growth.values()]
            row = "".join(f"{(cell[0] or 0) / 1e6:16.1f}" if cell else f"{'-':>16}" for cell in cells)
            print(f"    turn {turn} ({context:5.0f} tokens)    {row}")

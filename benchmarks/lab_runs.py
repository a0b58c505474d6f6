"""Record a run of the lab once, for the benchmarks that compare runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def kvlens(*arguments: str | Path) -> list[str]:
    """Return the command line of kvlens in this environment."""
    return [str(Path(sys.executable).with_name("kvlens")), *map(str, arguments)]


def record(out: Path, options: Sequence[str]) -> None:
    """Run `kvlens lab run` into a directory, unless that holds a finished run."""
    if not (out / "client.jsonl").exists():
        print(f"  recording {out}", file=sys.stderr)
        subprocess.run(kvlens("lab", "run", *options, "--out", out), check=True, stdout=subprocess.DEVNULL)

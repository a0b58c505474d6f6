"""The ledger beside vLLM's own cache usage: cache_usage.jsonl of the run directory, change by change.

The lab notes what vLLM's block pool says of itself, the figure behind `vllm:kv_cache_usage_perc`, whenever it changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from ..run import Run

USAGE_FILE = "cache_usage.jsonl"
RECORD_SCHEMA = 2
USAGE_SCHEMA = {"engine": pl.String, "unix_ns": pl.Int64, "blocks": pl.Int64}
NS_PER_S = 1e9


def find_usage(run: Run) -> Path | None:
    """Find the run directory's cache_usage.jsonl, beside its traces."""
    folders = {parent for path in run.files for parent in (path.parent, path.parent.parent)}
    return next((path for folder in sorted(folders) if (path := folder / USAGE_FILE).is_file()), None)


def read_usage(path: Path | None) -> tuple[pl.DataFrame, int]:
    """Read changes of cache usage: (engine, unix_ns, blocks), and how many lines were damaged or of another schema."""
    rows: list[dict[str, Any]] = []
    bad = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path else ():
        try:
            record = json.loads(line)
            if record["schema"] != RECORD_SCHEMA:
                raise ValueError(record["schema"])
            rows.append({name: record[name] for name in USAGE_SCHEMA})
        except (ValueError, KeyError, TypeError):
            bad += bool(line.strip())
    return pl.DataFrame(rows, schema=USAGE_SCHEMA, strict=False).drop_nulls(), bad


def compare_usage(classified: pl.DataFrame, usage: pl.DataFrame) -> list[dict[str, Any]]:
    """Compare the ledger with vLLM's cache usage, engine by engine, from its first to its last change.

    classified: rows of ledger.classify. usage: rows of read_usage; what is used stays so until the next row. A
    request's block-seconds are known as one sum, so its blocks count as their mean while it runs. difference: to what
    vLLM says; None where that is nothing.
    """
    found = []
    for (engine,), changes in sorted(usage.sort("unix_ns").partition_by("engine", as_dict=True).items()):
        if changes.height < 2:
            continue
        own = classified.filter((pl.col("engine") == engine) & (pl.col("held_ns") > 0))
        low, high = int(changes["unix_ns"][0]), int(changes["unix_ns"][-1])
        lasted = changes["unix_ns"].diff().shift(-1).fill_null(0)
        measured = float((changes["blocks"] * lasted).sum()) / NS_PER_S
        held = integrate(own, low, high)
        found.append({
            "engine": engine, "changes": changes.height, "window_s": (high - low) / NS_PER_S,
            "measured_block_s": measured, "ledger_block_s": held,
            "difference": (held - measured) / measured if measured else None,
            "without_block_s": own.filter(
                pl.col("block_ns").is_null() & (pl.col("begin") < high) & (pl.col("finish") > low)
            ).height,
        })  # fmt: skip
    return found


def integrate(own: pl.DataFrame, low: int, high: int) -> float:
    """Integrate the holdings of one engine inside [low, high] ns; block-seconds."""
    inside = (pl.min_horizontal("finish", pl.lit(high)) - pl.max_horizontal("begin", pl.lit(low))).clip(lower_bound=0)
    return float(own.select((pl.col("block_ns") * (inside / pl.col("held_ns"))).sum()).item() or 0.0) / NS_PER_S

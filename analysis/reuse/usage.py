"""The ledger beside vLLM's own cache usage: cache_usage.jsonl of the run directory, sample by sample.

vLLM sets its gauge at the end of an engine step and leaves it until the next one. What a prompt holds while its one
step runs is not in it, and what an idle engine gave back still is. So the ledger is looked at twice: as it is,
integrated, and as that gauge would have shown it at the moments of the samples; the second one is what must agree.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from ..run import Run

USAGE_FILE = "cache_usage.jsonl"
USAGE_SCHEMA = {"engine": pl.String, "unix_ns": pl.Int64, "blocks": pl.Int64}
NS_PER_S = 1e9


def find_usage(run: Run) -> Path | None:
    """Find the run directory's cache_usage.jsonl, beside its traces."""
    folders = {parent for path in run.files for parent in (path.parent, path.parent.parent)}
    return next((path for folder in sorted(folders) if (path := folder / USAGE_FILE).is_file()), None)


def read_usage(path: Path | None) -> tuple[pl.DataFrame, int]:
    """Read samples of cache usage: (engine, unix_ns, blocks), and how many lines were damaged."""
    rows: list[dict[str, Any]] = []
    bad = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path else ():
        try:
            record = json.loads(line)
            rows.append({name: record[name] for name in USAGE_SCHEMA})
        except (ValueError, KeyError, TypeError):
            bad += bool(line.strip())
    return pl.DataFrame(rows, schema=USAGE_SCHEMA, strict=False).drop_nulls(), bad


def compare_usage(classified: pl.DataFrame, usage: pl.DataFrame, steps: pl.DataFrame) -> list[dict[str, Any]]:
    """Compare the ledger with vLLM's cache usage, engine by engine, over the window of its samples.

    classified: rows of ledger.classify. usage: rows of read_usage. steps: rows of sql/steps.sql.
    A sample counts until the next one. A request's block-seconds are known as one sum, so its blocks count as their
    mean while it runs. seen_block_s (the ledger as the gauge would show it) and difference (to it) are None without
    steps.
    """
    found = []
    for (engine,), samples in sorted(usage.sort("unix_ns").partition_by("engine", as_dict=True).items()):
        if samples.height < 2:
            continue
        own = classified.filter((pl.col("engine") == engine) & (pl.col("held_ns") > 0))
        low, high = int(samples["unix_ns"][0]), int(samples["unix_ns"][-1])
        lasted = samples["unix_ns"].diff().shift(-1).fill_null(0)
        measured = float((samples["blocks"] * lasted).sum()) / NS_PER_S
        moments = find_moments(samples, steps.filter(pl.col("engine") == engine))
        seen = None if moments is None else float((find_levels(own, moments) * lasted).sum()) / NS_PER_S
        found.append({
            "engine": engine, "samples": samples.height, "window_s": (high - low) / NS_PER_S,
            "measured_block_s": measured, "seen_block_s": seen, "ledger_block_s": integrate(own, low, high),
            "difference": (seen - measured) / measured if seen is not None and measured else None,
            "without_block_s": own.filter(
                pl.col("block_ns").is_null() & (pl.col("begin") < high) & (pl.col("finish") > low)
            ).height,
        })  # fmt: skip
    return found


def integrate(own: pl.DataFrame, low: int, high: int) -> float:
    """Integrate the holdings of one engine inside [low, high] ns; block-seconds."""
    inside = (pl.min_horizontal("finish", pl.lit(high)) - pl.max_horizontal("begin", pl.lit(low))).clip(lower_bound=0)
    return float(own.select((pl.col("block_ns") * (inside / pl.col("held_ns"))).sum()).item() or 0.0) / NS_PER_S


def find_moments(samples: pl.DataFrame, steps: pl.DataFrame) -> pl.Series | None:
    """Find the moment that each sample tells of: the end of the step before it, its own in a run of idle steps.

    None without steps: then nobody knows when the gauge was set.
    """
    if steps.is_empty():
        return None
    ended = steps.select("finish").sort("finish").with_columns(moment="finish")
    begun = steps.select("begin", "steps", until="finish").sort("begin")
    met = samples.select(at="unix_ns").join_asof(ended, left_on="at", right_on="finish")
    met = met.join_asof(begun, left_on="at", right_on="begin")
    idle = (pl.col("steps") > 1) & (pl.col("at") < pl.col("until"))
    return met.select(pl.when(idle).then("at").otherwise(pl.coalesce("moment", "at"))).to_series()


def find_levels(own: pl.DataFrame, moments: pl.Series) -> pl.Series:
    """Find the blocks held at some moments (ns), in their order."""
    level = pl.col("block_ns").fill_null(0) / pl.col("held_ns")
    changes = pl.concat([own.select(at="begin", change=level), own.select(at="finish", change=-level)])
    levels = (
        changes.group_by("at").agg(pl.col("change").sum()).sort("at").select("at", level=pl.col("change").cum_sum())
    )
    asked = pl.DataFrame({"at": moments}).with_row_index("place").sort("at")
    return asked.join_asof(levels, on="at").sort("place")["level"].fill_null(0.0)

"""Posts and wires of a run: fixed part and rate, and how many transfers were over when the post returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from .fit import fit_costs
from .observations import NS, Observations
from .parameters import Source

INLINE_NS = 500_000
"""A transfer whose landing is bounded this close to its post was over when the post returned."""
NOTICE_NS = 5_000_000
"""Push: D's notification within this after the post did not wait for P's next poll, which is a step away."""


def measure_transfers(observed: Observations) -> tuple[dict[str, Any], list[Source]]:
    """Measure posts and wires: keyword arguments of Network, and where they come from."""
    moved = observed.requests.drop_nulls(["post_start", "post_end", "landed", "bytes"]).filter(pl.col("bytes") > 0)
    if moved.is_empty():
        return {}, [Source("transfers", "nothing", "assumed: no transfer was recorded")]
    post = _fit_line(moved, pl.col("post_end") - pl.col("post_start"))
    slow = _find_slow(moved)
    inline = 1 - slow.height / moved.height
    wire = _fit_line(slow, pl.col("landed") - pl.col("post_end")) if slow.height else (0.0, 0.0)
    backend = str(observed.manifest.get("backend", "UCX")).upper()
    at_poll = "UCX" in backend
    count = moved.height
    sources = [
        Source("post", f"{post[0] * 1e3:.2f} ms + {post[1] * 1e9:.3f} ns/byte", f"measured: {count} posts"),
        Source("wire", f"{wire[0] * 1e3:.2f} ms + {wire[1] * 1e9:.3f} ns/byte",
               f"measured: {slow.height} transfers that were not over when the post returned; {inline:.0%} were"),
        Source("registration", "1 ms", "assumed: the push writer's poll interval"),
        Source("notification", "at the sender's poll unless over at once" if at_poll else "with the data",
               f"NIXL's {backend} backend"),
    ]  # fmt: skip
    return {
        "post_fixed": post[0], "post_per_byte": post[1], "wire_fixed": wire[0], "wire_per_byte": wire[1],
        "inline": inline, "notify_at_poll": at_poll,
    }, sources  # fmt: skip


def _find_slow(moved: pl.DataFrame) -> pl.DataFrame:
    """Transfers that were not over when the post returned.

    Pull: a poll saw it in progress. Push: P polls a step later, but D's notification came late.
    """
    is_push = pl.col("mode") == "push"
    waited = pl.when(is_push).then(pl.min_horizontal("landed_hi", "notified_at")).otherwise(pl.col("landed_lo"))
    bound = pl.when(is_push).then(NOTICE_NS).otherwise(INLINE_NS)
    return moved.filter((waited - pl.col("post_end") > bound).fill_null(value=False))


def _fit_line(rows: pl.DataFrame, value: pl.Expr) -> tuple[float, float]:
    """Fixed seconds and seconds per byte, both not negative."""
    seconds = np.maximum(rows.select(value).to_series().to_numpy() * NS, 1e-6)
    size = rows["bytes"].to_numpy().astype(float)
    if len(np.unique(size)) < 2:
        return float(np.mean(seconds)), 0.0
    fit = fit_costs(np.stack([np.ones(len(size)), size / 1e6], axis=1), seconds, np.zeros(len(size)), 0.0)
    scale = float(fit.ratios.mean())
    return float(fit.costs[0]) * scale, float(fit.costs[1]) * scale / 1e6

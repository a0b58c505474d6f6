"""Budgets -> percentiles per mode and per prompt-length bucket, shares by class; plain dicts, ready for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from .segments import CLASS_OF, CLASSES, HIDDEN, READBACK_PARTS, SEGMENTS, UNRESOLVED

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

BUCKET_EDGES = (256, 1024, 4096, 16384)
BUCKETS = ("<=256", "257-1024", "1025-4096", "4097-16384", ">16384")
NO_BUCKET = "unknown"

NS_PER_MS = 1e6

COLUMNS = (
    "ttft", "tpot_ns", "residual", "uncertainty_ns", "disorder",
    *(f"{prefix}_{name}" for prefix in ("seg", "unc") for name in SEGMENTS),
    *(f"hid_{name}" for name in HIDDEN),
    *(f"rbk_{part}" for part in (*READBACK_PARTS, UNRESOLVED)),
)  # fmt: skip
"""What is summed up of a budget."""


def add_bucket(frame: pl.DataFrame) -> pl.DataFrame:
    """Add bucket: the range of prompt tokens that a request falls into."""
    bucket = pl.lit(BUCKETS[-1])
    for edge, name in zip(reversed(BUCKET_EDGES), reversed(BUCKETS[:-1]), strict=True):
        bucket = pl.when(pl.col("prompt_tokens") <= edge).then(pl.lit(name)).otherwise(bucket)
    return frame.with_columns(
        bucket=pl.when(pl.col("prompt_tokens").is_null()).then(pl.lit(NO_BUCKET)).otherwise(bucket)
    )


def summarize_modes(budgets: pl.DataFrame) -> dict[str, Any]:
    """Summarize every mode, and inside it every prompt-length bucket that occurs."""
    modes: dict[str, Any] = {}
    # Rows are copied by mode and again by bucket: only what is summed up.
    for (mode,), rows in budgets.select("mode", "bucket", *COLUMNS).group_by("mode", maintain_order=True):
        modes[str(mode) or "unknown"] = summarize(rows) | {"buckets": summarize_buckets(rows)}
    return modes


def summarize_buckets(rows: pl.DataFrame) -> dict[str, Any]:
    """Summarize each bucket, shortest prompts first."""
    found = dict(rows.partition_by("bucket", as_dict=True, maintain_order=True))
    return {name: summarize(found[(name,)]) for name in (*BUCKETS, NO_BUCKET) if (name,) in found}


def summarize(rows: pl.DataFrame) -> dict[str, Any]:
    """Summarize some requests: count, percentiles in ms, each segment's and each class's share of all TTFT (0..1)."""
    whole = float(rows["ttft"].sum()) or 1.0
    segments: dict[str, dict[str, Any]] = {
        name: describe(rows[f"seg_{name}"])
        | {"share": float(rows[f"seg_{name}"].sum()) / whole, "class": CLASS_OF[name]}
        | _describe_doubt(rows[f"unc_{name}"])
        for name in SEGMENTS
        if rows[f"seg_{name}"].count()
    }
    parts = {part: describe(rows[f"rbk_{part}"]) for part in (*READBACK_PARTS, UNRESOLVED)}
    readback = {part: entry for part, entry in parts.items() if entry["count"]}
    classes = {kind: sum(entry["share"] for entry in segments.values() if entry["class"] == kind) for kind in CLASSES}
    return {
        "count": rows.height,
        "ttft_ms": describe(rows["ttft"]),
        "tpot_ms": describe(rows["tpot_ns"]),
        "segments": segments,
        "hidden": {name: describe(rows[f"hid_{name}"]) for name in HIDDEN if rows[f"hid_{name}"].count()},
        "classes": classes | {"residual": float(rows["residual"].sum()) / whole},
        "residual_ms": describe(rows["residual"]),
        "uncertainty_ms": describe(rows["uncertainty_ns"]),
        "disorder_ms": describe(rows["disorder"]),
    } | ({"readback": readback} if readback else {})


def _describe_doubt(doubts: pl.Series) -> dict[str, float]:
    """Median uncertainty of a segment, ms; nothing where none of its values is uncertain."""
    known = doubts.drop_nulls()
    return {"uncertainty_ms": _to_ms(known.median())} if (known > 0).any() else {}


def describe(values: pl.Series) -> dict[str, float]:
    """Percentiles, mean and count of a column of ns, in ms; empty without values."""
    known = values.drop_nulls().to_numpy()
    if not len(known):
        return {"count": 0}
    places = {name: (len(known) - 1) * q for name, q in QUANTILES.items()}
    ends = sorted({end for place in places.values() for end in (int(place), int(np.ceil(place)))})
    parted = np.partition(known, ends)
    quantiles = {name: _to_ms(_interpolate(parted, place)) for name, place in places.items()}
    return {"count": len(known), **quantiles, "mean": _to_ms(known.mean()), "max": _to_ms(known.max())}


def _interpolate(ordered: npt.NDArray[Any], place: float) -> float:
    low, high = float(ordered[int(place)]), float(ordered[int(np.ceil(place))])
    return low + (high - low) * (place - int(place))


def _to_ms(value: Any) -> float:
    return round(float(value) / NS_PER_MS, 6)

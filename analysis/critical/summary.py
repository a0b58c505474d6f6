"""Paths and bands of a run as plain values: for the JSON document, the tables and the report."""

from __future__ import annotations

from typing import Any

import polars as pl

from ..breakdown import Breakdown
from ..segments import CLASS_OF, SEGMENTS
from ..source import Session
from .bands import average_bands, compare_bands, split_bands
from .path import find_paths

NS_PER_MS = 1e6
SCHEMA = 1


def load_paths(session: Session, breakdown: Breakdown) -> pl.DataFrame:
    """Find the critical paths of an open run; how ranks ended is asked only when there are several."""
    several = (breakdown.budgets["x_ranks"] > 1).any()
    return find_paths(breakdown.budgets, session.query("rank_ends") if several else None)


def summarize_paths(paths: pl.DataFrame) -> dict[str, Any]:
    """Summarize each mode: segments (see list_segments), bands and the comparison of the slowest with the middle."""
    modes = {}
    for (mode,), rows in paths.group_by("mode", maintain_order=True):
        bands = split_bands(rows)
        modes[str(mode) or "unknown"] = {
            "requests": rows.height,
            "segments": list_segments(rows),
            "middle": bands.middle if bands else None,
            "top": bands.top if bands else None,
            "bands": average_bands(bands) if bands else [],
            "differences": compare_bands(bands) if bands else [],
        }
    return modes


def list_segments(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """List the segments in the order of the path: mean length, drag and slack (ms), share of requests they delayed."""
    found = []
    for name in SEGMENTS:
        known = rows.filter(pl.col(f"len_{name}").is_not_null())
        if known.is_empty():
            continue
        found.append({
            "segment": name, "class": CLASS_OF[name], "requests": known.height,
            "on_path": float((known[f"drag_{name}"] > 0).sum()) / known.height,
            **{f"{figure}_ms": _mean(known[f"{figure}_{name}"]) for figure in ("len", "drag", "slack")},
        })  # fmt: skip
    return found


def describe_request(row: dict[str, Any]) -> dict[str, Any]:
    """Describe one request's path: its segments with length, drag and slack (ms), and which branch decided."""
    lead, rank_lead = row["lead"], row["rank_lead"]
    segments = [
        {
            "segment": name, "class": CLASS_OF[name],
            **{f"{figure}_ms": _to_ms(row[f"{figure}_{name}"]) for figure in ("len", "drag", "slack")},
        }
        for name in SEGMENTS
        if row[f"len_{name}"] is not None
    ]  # fmt: skip
    return {
        "request_id": row["request_id"],
        "mode": row["mode"],
        "ttft_ms": _to_ms(row["ttft"]),
        "prefill_engine": row["p_engine"],
        "decode_engine": row["d_engine"],
        "critical_branch": None if lead is None else "prefill" if lead >= 0 else "decode",
        "branch_lead_ms": None if lead is None else abs(lead) / NS_PER_MS,
        "rank_lead_ms": None if rank_lead is None else rank_lead / NS_PER_MS,
        "segments": segments,
        "unknown_segments": row["unknown"],
    }


def _mean(values: pl.Series) -> float:
    return round(float(values.fill_null(0).mean() or 0.0) / NS_PER_MS, 6)  # type: ignore[arg-type]


def _to_ms(value: int | None) -> float:
    return round((value or 0) / NS_PER_MS, 6)

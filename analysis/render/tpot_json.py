"""The JSON document of `kvlens tpot --json`; times in ms.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from ..summary import describe
from ..tpot import CONNECTOR_PARTS, PARTS
from ..tpot_report import TpotReport

SCHEMA = 1
NS_PER_MS = 1e6


def render_json(report: TpotReport) -> str:
    """Render a report as its JSON document."""
    return json.dumps(make_document(report), ensure_ascii=False, allow_nan=False)


def make_document(report: TpotReport) -> dict[str, Any]:
    """Make the document: requests, batches, long gaps, culprits, where work ran, and the summary."""
    return {
        "schema": SCHEMA,
        "run": {"name": report.run.name, **report.run.manifest},
        "requests": _to_ms(
            report.requests.drop("life", "send_unix_ns", "last_ns", "first_ns", "first_end", "last_end")
        ),
        "batches": _to_ms(report.batches),
        "gaps": {"bound_ms": report.bound_ns / NS_PER_MS, "causes": _to_ms(report.gaps)},
        "culprits": _to_ms(report.culprits),
        "submissions": _to_ms(report.submissions),
        "threads": _to_ms(report.threads),
        "push_writer": _to_ms(report.writer),
        "interference": report.interference,
        "summary": summarize(report),
    }


def summarize(report: TpotReport) -> dict[str, Any]:
    """Summarize all requests: percentiles of TPOT and its parts, and of the residual against the client (ms)."""
    rows = report.requests
    known = rows.drop_nulls("residual_ns")
    share = (known["residual_ns"].abs() / known["client_tpot_ns"]) if known.height else pl.Series([], dtype=pl.Float64)
    return {
        "requests": rows.height,
        "tpot_ms": describe(rows["tpot_ns"]),
        "parts": {name: describe(rows[f"{name}_ns"]) for name in (*PARTS, *CONNECTOR_PARTS)},
        "client_tpot_ms": describe(rows["client_tpot_ns"]),
        "residual_ms": describe(rows["residual_ns"]),
        "abs_residual_ms": describe(rows["residual_ns"].abs()),
        "abs_residual_share_p99": round(float(share.quantile(0.99, "linear") or 0.0), 6) if known.height else None,
        "coalesced_tokens": int(rows["coalesced"].sum()),
        "client_tokens": int(rows["tokens"].sum()),
        **report.coverage,
    }


def _to_ms(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Turn <name>_ns columns into <name>_ms."""
    in_ms = {
        f"{name.removesuffix('_ns')}_ms": (pl.col(name) / NS_PER_MS).round(6)
        for name in frame.columns
        if name.endswith("_ns")
    }
    return frame.select(pl.exclude(r"^.*_ns$"), **in_ms).to_dicts()

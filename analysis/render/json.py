"""The JSON document of `kvlens breakdown --json` (DESIGN.md, "Command contract"); times in ms.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from ..breakdown import Breakdown
from ..segments import HIDDEN, READBACK_PARTS, SEGMENTS, UNRESOLVED

SCHEMA = 1

NS_PER_MS = 1e6

TIMES = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot_ns",
    "residual_ms": "residual",
    "uncertainty_ms": "uncertainty_ns",
    "clock_uncertainty_ms": "clock_doubt",
    "disorder_ms": "disorder",
    "client_ttft_ms": "client_ttft",
}
FACTS = (
    "request_id", "trace_id", "mode", "ttft_source", "request_key", "p_engine", "d_engine", "p_id", "d_id",
    "prompt_tokens", "cached_tokens", "output_tokens", "bytes", "descriptors", "x_ranks", "x_rank", "siblings",
    "missing", "is_unfinished", "late_side", "unknown",
)  # fmt: skip
READBACK_FACTS = {
    name: pl.col(name).alias(name.removeprefix("rb_"))
    for name in ("rb_outcome", "rb_tokens", "rb_blocks", "rb_bytes", "rb_descriptors", "rb_peer", "rb_ranks", "rb_rank")
}
RENAMED = {
    "p_engine": "prefill_engine",
    "d_engine": "decode_engine",
    "p_id": "prefill_request_id",
    "d_id": "decode_request_id",
    "x_ranks": "ranks",
    "x_rank": "slowest_rank",
    "unknown": "unknown_segments",
}


def render_document(breakdown: Breakdown) -> dict[str, Any]:
    """Render one run."""
    return {
        "schema": SCHEMA,
        "run": {"name": breakdown.run.name, **breakdown.run.manifest},
        "requests": list_requests(breakdown.budgets),
        "unfinished": list_unfinished(breakdown.unfinished),
        "summary": breakdown.summary,
    }


def render_json(breakdowns: list[Breakdown]) -> str:
    """Render one run as its document, several as {"schema", "runs"}."""
    documents = [render_document(breakdown) for breakdown in breakdowns]
    whole = documents[0] if len(documents) == 1 else {"schema": SCHEMA, "runs": documents}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def list_requests(budgets: pl.DataFrame) -> list[dict[str, Any]]:
    """List the budgets, in the order in which requests began."""
    times = {name: _to_ms(column) for name, column in TIMES.items()}
    rows = budgets.select(
        *(pl.col(name).alias(RENAMED.get(name, name)) for name in FACTS),
        **times,
        segments=pl.struct(_to_ms(f"seg_{name}").alias(name) for name in SEGMENTS),
        segment_uncertainty_ms=pl.struct(_to_ms(f"unc_{name}").alias(name) for name in SEGMENTS),
        hidden=pl.struct(_to_ms(f"hid_{name}").alias(name) for name in HIDDEN),
        readback_ms=pl.struct(_to_ms(f"rbk_{part}").alias(part) for part in (*READBACK_PARTS, UNRESOLVED)),
        readback=pl.struct(*READBACK_FACTS.values(), uncertainty_ms=_to_ms("rb_uncertainty_ns"))
        if READBACK_FACTS.keys() <= {*budgets.columns}
        else pl.lit(None),
    ).to_dicts()
    for row in rows:
        row["segments"] = {name: value for name, value in row["segments"].items() if value is not None}
        row["hidden"] = {name: value for name, value in row["hidden"].items() if value is not None}
        row["segment_uncertainty_ms"] = {name: value for name, value in row["segment_uncertainty_ms"].items() if value}
        parts = {part: value for part, value in row.pop("readback_ms").items() if value is not None}
        facts = row.pop("readback")
        if parts:  # most runs have none
            row |= {"readback_ms": parts, "readback": facts}
        row["finished"] = not row.pop("is_unfinished")
    return rows


def list_unfinished(unfinished: pl.DataFrame) -> list[dict[str, Any]]:
    """List the requests that never got their last token and what they waited for."""
    return unfinished.select(
        "request_id", "trace_id", "mode", "waiting_for",
        first_token="has_first", router_status="r_status", error="r_error", missing="missing",
        prefill_request_id="p_id", decode_request_id="d_id", prefill_finish="p_finish", decode_finish="d_finish",
    ).to_dicts()  # fmt: skip


def _to_ms(column: str) -> pl.Expr:
    return (pl.col(column) / NS_PER_MS).round(6)

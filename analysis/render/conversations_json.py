"""The JSON document of `kvlens conversations --json`; times in ms, gaps and completion in s.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ..compare.estimate import Estimate
from ..reuse.conversations import Beside, ConversationReport, choose_base, put_beside
from ..segments import SEGMENTS

SCHEMA = 1
NS_PER_MS = 1e6
NS_PER_S = 1e9
TOKENS = ("context", "reused", "cached", "computed")
TIMES = ("completion", "gaps", "first_token", "generation", "rest", "engine")


def render_json(reports: list[ConversationReport]) -> str:
    """Render one run, and those beside it, as a JSON document."""
    document = make_document(reports[0])
    if len(reports) > 1:
        base = choose_base(reports)
        document["against"] = [make_document(report) for report in reports[1:]]
        document["differences"] = [
            {"run": report.run.name, **_beside(put_beside(reports[base], report))}
            for place, report in enumerate(reports)
            if place != base
        ]
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def make_document(report: ConversationReport) -> dict[str, Any]:
    """Make the document of one run; times in ms, gaps and completion in s."""
    turns = report.turns.partition_by("conversation", as_dict=True, maintain_order=True)
    return {
        "schema": SCHEMA,
        "run": {"name": report.run.name, **report.run.manifest},
        "reuse": report.label,
        "conversations": [
            {**_task(task), "turns": [_turn(row) for row in turns[(task["conversation"],)].iter_rows(named=True)]}
            for task in report.tasks.iter_rows(named=True)
        ],
        "growth": [_growth(row) for row in report.growth.iter_rows(named=True)],
        "ttft_ms_per_1000_tokens": report.slope and vars(report.slope),
        "alone": report.alone,
    }


def _task(row: dict[str, Any]) -> dict[str, Any]:
    seconds = {
        f"{name}_s": _divide(row[f"{name}_ns"], NS_PER_S)
        for name in ("completion", "engine", "first_token", "generation", "gaps", "rest")
    }
    tokens = {f"{name}_tokens": row[name] for name in TOKENS}
    return {"conversation": row["conversation"], "link": row["link"], **seconds, **tokens}


def _turn(row: dict[str, Any]) -> dict[str, Any]:
    segments = {name: _divide(row[f"seg_{name}"], NS_PER_MS) for name in SEGMENTS if row[f"seg_{name}"] is not None}
    facts = {name: row[name] for name in ("turn", "request_id", "offered", "reason", "prefix")}
    tokens = {f"{name}_tokens": row[name] for name in TOKENS}
    return {
        **facts, "gap_s": _divide(row["gap_ns"], NS_PER_S), **tokens, "ttft_ms": _divide(row["ttft"], NS_PER_MS),
        "segments": segments, "residual_ms": _divide(row["residual"], NS_PER_MS),
        "tpot_ms": _divide(row["tpot_ns"], NS_PER_MS), "generation_ms": _divide(row["generation_ns"], NS_PER_MS),
    }  # fmt: skip


def _growth(row: dict[str, Any]) -> dict[str, Any]:
    tokens = {f"{name}_tokens": row[name] for name in TOKENS}
    columns = ("ttft", "ttft_p90", "tpot_ns", "seg_prefill_compute", "seg_readback", "seg_prefill_queue")
    times = {f"{name.removeprefix('seg_').removesuffix('_ns')}_ms": _divide(row[name], NS_PER_MS) for name in columns}
    return {
        "turn": row["turn"],
        "requests": row["requests"],
        **tokens,
        **times,
        "gap_s": _divide(row["gap_ns"], NS_PER_S),
    }


def _beside(beside: Beside) -> dict[str, Any]:
    def plain(one: Estimate) -> dict[str, Any]:
        values = {"difference_ms": one.difference, "low_ms": one.low, "high_ms": one.high, "p": one.p}
        return {"pairs": one.requests[0]} | {k: None if math.isnan(v) else v for k, v in values.items()}

    return {
        "base": beside.base,
        "first_turns_ttft": plain(beside.first),
        "later_turns_ttft": plain(beside.later),
        "task_without_gaps": plain(beside.tasks),
    }


def _divide(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 6)

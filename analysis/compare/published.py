"""Published figures beside a run: both sets of conditions, both figures, and no claim that they are equal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from ..breakdown import Breakdown
from ..segments import SEGMENTS

PATH = Path(__file__).with_name("published.json")

NO_CLAIM = (
    "These are figures from other machines under other conditions, printed to stand beside each other."
    " kvlens claims neither equality nor a difference."
)
NOT_STATED = "not stated"

# From the end of the prompt to the first decode step: what a router sees as one hand-over.
HAND_OVER = ("handoff_dispatch", "pairing", "decode_admission", "registration", "handshake", "dispatch", "post", "wire",
             "completion_lag", "decode_queue")  # fmt: skip

NS_PER_MS = 1e6


@dataclass(frozen=True)
class Beside:
    """One published set beside a run: rows of (condition, published, run) and of (figure, published, run)."""

    title: str
    conditions: tuple[tuple[str, str, str], ...]
    figures: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]


@cache
def read_published() -> dict[str, Any]:
    """Read the reference data that this package ships."""
    return dict(json.loads(PATH.read_text(encoding="utf-8")))


def put_beside(breakdown: Breakdown) -> list[Beside]:
    """Put every published set of the run's mode, and those that name no mode, beside the run."""
    modes = set(breakdown.summary["modes"])
    own = describe_run(breakdown)
    return [
        Beside(
            one["title"],
            tuple((name.replace("_", " "), _word(value), own[name]) for name, value in one["conditions"].items()),
            tuple(_put_figure(figure, breakdown.budgets) for figure in one["figures"]),
            tuple(one["remarks"]),
        )
        for one in read_published()["sets"]
        if {figure["mode"] for figure in one["figures"]} & {*modes, None}
    ]


def describe_run(breakdown: Breakdown) -> dict[str, str]:
    """Describe the run's own conditions in the terms of the published sets."""
    manifest = breakdown.run.manifest
    workload = (manifest.get("workloads") or [manifest.get("workload") or {}])[0]
    machine, model, engines = manifest.get("machine") or {}, manifest.get("model") or {}, manifest.get("engines") or []
    roles = [engine.get("role") for engine in engines]
    tokens = breakdown.budgets["prompt_tokens"].drop_nulls()
    rate = workload.get("rate")
    versions = manifest.get("versions") or {}
    found = {
        "hardware": machine.get("cpu") and f"{machine['cpu']}, {machine.get('cores')} cores",
        "fabric": " ".join(str(manifest[name]) for name in ("backend", "transport") if manifest.get(name)),
        "model": model.get("name"),
        "topology": roles and f"{roles.count('prefill')}P{roles.count('decode')}D",
        "prefix_caching": (manifest.get("cache_policy") or {}).get("prefix_caching"),
        "output_tokens": workload.get("output_len"),
        "prompt_tokens": None if tokens.is_empty() else f"{int(tokens.sort()[0]):,}-{int(tokens.sort()[-1]):,}",
        "load": f"{rate} requests/s" if rate else workload.get("max_in_flight") and "closed loop",
        "turns": workload.get("turns"),
        "versions": ", ".join(f"{name} {versions[name]}" for name in ("vllm", "nixl") if versions.get(name)),
    }
    return {name: _word(value) for name, value in found.items()}


def _put_figure(figure: dict[str, Any], budgets: pl.DataFrame) -> tuple[str, str, str]:
    mode = figure["mode"]
    rows = budgets.filter(pl.col("mode") == mode) if mode else budgets
    about = "about " if figure.get("approximate") else ""
    statistic = figure["statistic"] or "statistic not stated"
    name = f"{figure['metric']}{f', {mode}' if mode else ''}: {figure['at']}"
    return name, f"{about}{figure['value_ms']:g} ms ({statistic})", _measure(figure["metric"], rows)


def _measure(metric: str, rows: pl.DataFrame) -> str:
    values = rows.select(_choose(metric).alias("value"))["value"].drop_nulls() / NS_PER_MS
    if values.is_empty():
        return "not in this run"
    low, middle, high = (values.quantile(q, "linear") for q in (0.5, 0.9, 0.99))
    return f"p50 {low:.1f}, p90 {middle:.1f}, p99 {high:.1f} ms (n={values.len()})"


def _choose(metric: str) -> pl.Expr:
    if metric == "hand-over":
        return pl.sum_horizontal(pl.col(f"seg_{name}").fill_null(0) for name in HAND_OVER)
    return pl.col(f"seg_{metric}") if metric in SEGMENTS else pl.col({"ttft": "ttft", "tpot": "tpot_ns"}[metric])


def _word(value: Any) -> str:
    if value in (None, "", []):
        return NOT_STATED
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

"""A prediction as plain dicts, for JSON and for the tables: times in ms."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from ..segments import SEGMENTS
from ..summary import BUCKETS
from .model.fleet import EngineLoad
from .predict import KINDS, LOADS, Prediction

SCHEMA = 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
VIEWS = {"recorded": "recorded", "replayed": "own", "simulated": "other", "predicted": "predicted"}
GAIN = 0.05
"""A request gains or loses when its predicted time differs from the recorded one by more than this share."""


def render_document(prediction: Prediction) -> dict[str, Any]:
    """The whole result as one JSON-ready dict (schema 1)."""
    rows = prediction.requests
    return {
        "schema": SCHEMA,
        "run": prediction.run,
        "recorded": asdict(prediction.own),
        "arrangement": asdict(prediction.other),
        "requests": rows.height,
        "left_out": prediction.left_out,
        "replays": prediction.replays,
        **{f"{kind}_ms": summarize(prediction, kind) for kind in KINDS},
        "replay_error": {kind: find_replay_error(rows, kind) for kind in KINDS},
        "segments_ms": summarize_segments(rows),
        "by_prompt": group(rows, "bucket", BUCKETS),
        "by_load": group(rows, "load", LOADS),
        "engines": pair_loads(prediction.own_loads, prediction.other_loads),
        "parameters": [asdict(source) for source in prediction.parameters.sources],
        "assumptions": list(prediction.notes),
        "per_request": list_requests(rows),
    }


def summarize(prediction: Prediction, kind: str) -> dict[str, Any]:
    """Percentiles of each view, and the range of the prediction over single replays (ms)."""
    views = {view: describe(prediction.requests[f"{column}_{kind}"]) for view, column in VIEWS.items()}
    ranges = {name: [low * 1e3, high * 1e3] for name, (low, high) in prediction.ranges[kind].items()}
    return {**views, "predicted_range": ranges}


def describe(values: pl.Series) -> dict[str, float]:
    """p50, p90, p99 and mean in ms; empty where nothing is known."""
    known = values.drop_nulls()
    if known.is_empty():
        return {}
    found = {name: float(known.quantile(part, "linear") or 0.0) * 1e3 for name, part in QUANTILES.items()}
    return {**found, "mean": float(known.mean() or 0.0) * 1e3}  # type: ignore[arg-type]


def find_replay_error(rows: pl.DataFrame, kind: str) -> dict[str, float]:
    """How far the replay of the recorded mode is from the record: relative, of p50, p90 and p99 and the mean."""
    recorded, own = describe(rows[f"recorded_{kind}"]), describe(rows[f"own_{kind}"])
    return {name: own[name] / recorded[name] - 1 for name in own if recorded.get(name)}


def summarize_segments(rows: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Mean of each segment, recorded, replayed and simulated (ms); segments that nobody has are left out."""
    found = {}
    for name in SEGMENTS:
        means = {view: rows[f"{column}_seg_{name}"].mean() for view, column in VIEWS.items() if view != "predicted"}
        if any(value is not None for value in means.values()):
            found[name] = {view: float(value) * 1e3 for view, value in means.items() if value is not None}  # type: ignore[arg-type]
    return found


def group(rows: pl.DataFrame, column: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
    """Who gains and who loses TTFT: by the values of a column."""
    parts = dict(rows.partition_by(column, as_dict=True))
    result = []
    for name in order:
        own = parts.get((name,))
        if own is None:
            continue
        ratio = own["predicted_ttft"] / own["recorded_ttft"]
        result.append({
            "group": name, "requests": own.height,
            "recorded_ms": describe(own["recorded_ttft"]), "predicted_ms": describe(own["predicted_ttft"]),
            "gain": float((ratio < 1 - GAIN).mean() or 0.0), "lose": float((ratio > 1 + GAIN).mean() or 0.0),
        })  # fmt: skip
    return result


def pair_loads(own: list[EngineLoad], other: list[EngineLoad]) -> list[dict[str, Any]]:
    """What each engine has to hold in both arrangements; an engine that one of them lacks has no figures there."""
    before, after = {one.engine: one for one in own}, {one.engine: one for one in other}
    names = sorted({*before, *after}, key=lambda name: (name[0] != "P", len(name), name))
    return [
        {"engine": name, "recorded": _word_load(before.get(name)), "predicted": _word_load(after.get(name))}
        for name in names
    ]


def _word_load(load: EngineLoad | None) -> dict[str, float] | None:
    if load is None:
        return None
    return {name: float(value) for name, value in asdict(load).items() if name != "engine"}


def list_requests(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Each request's times (ms)."""
    times = [f"{column}_{kind}" for kind in KINDS for column in VIEWS.values()]
    return rows.select(
        "request_id", "prompt_tokens", "in_flight", *((pl.col(name) * 1e3).alias(f"{name}_ms") for name in times)
    ).to_dicts()

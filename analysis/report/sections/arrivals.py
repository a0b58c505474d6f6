"""TTFT of every request over the run: bursts, warm-up and drifts are seen at a glance."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...segments import CLASS_OF
from ..model import Chart, Report, RunData, Section
from ..palette import COLOUR_OF_CLASS, axis_ms, colour_by, make_spec

ORDER = 40

MAX_POINTS = 2000
"""More points than this are a blot and a megabyte: the slowest tenth of them is kept, the rest is a seeded sample."""


def build(report: Report) -> Section | None:
    """Build the section."""
    data = [entry for run in report.runs for entry in list_points(run)]
    if not data:
        return None
    encoding: dict[str, Any] = {
        "x": {"field": "s", "type": "quantitative", "axis": {"title": "s since the first request", "tickCount": 6}},
        "y": axis_ms("ttft", "TTFT, ms"),
        "color": colour_by("class", COLOUR_OF_CLASS, [entry["class"] for entry in data]),
        "tooltip": [
            {"field": "request"}, {"field": "run"}, {"field": "ttft", "format": ",.1f", "title": "TTFT ms"},
            {"field": "tokens", "title": "prompt tokens"}, {"field": "segment", "title": "stands out"},
        ],
    }  # fmt: skip
    if report.is_pair:
        encoding["shape"] = {"field": "run", "type": "nominal", "sort": None}
    spec = make_spec(
        data, height=260, mark={"type": "point", "filled": True, "size": 55, "opacity": 0.8}, encoding=encoding
    )
    return Section(
        "Over the run",
        "Every request by its arrival; the colour is the class of the segment that stands out most in it.",
        [Chart(spec, "TTFT of each request by arrival.")],
    )


def list_points(run: RunData) -> list[dict[str, Any]]:
    """List the points of a run, thinned to MAX_POINTS."""
    frame = run.breakdown.budgets
    if frame.height > MAX_POINTS:
        slow = frame.sort("ttft", descending=True).head(MAX_POINTS // 10)
        rest = frame.join(slow, on="row", how="anti").sample(MAX_POINTS - slow.height, seed=0)
        frame = pl.concat([slow, rest], how="diagonal_relaxed")
    first = run.breakdown.budgets["ttft_start"].min()
    rows = frame.select(
        request="request_id", tokens="prompt_tokens", segment="reason_segment",
        ttft=(pl.col("ttft") / 1e6).round(3), s=((pl.col("ttft_start") - first) / 1e9).round(3),
    ).to_dicts()  # fmt: skip
    return [{**row, "run": run.name, "class": CLASS_OF[row["segment"]]} for row in rows]

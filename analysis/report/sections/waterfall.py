"""Single requests as waterfalls: the chosen ones, else the slowest and one at the median and at p90."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...render.table import word_row
from ...render.waterfall import list_bars
from ...segments import CLASS_OF_BAR, CLASSES
from ..model import Chart, Heading, Report, RunData, Section, Table
from ..palette import COLOUR_OF_CLASS, axis_ms, colour_by, make_spec

ORDER = 50

ROW_PX = 19
HIDDEN_OPACITY = 0.35


def build(report: Report) -> Section | None:
    """Build the section."""
    chosen = [(run, title, row) for run in report.runs for title, row in choose_requests(run, report.requests)]
    if not chosen:
        return None
    parts: list[Heading | Chart] = []
    for place, (run, title, row) in enumerate(chosen):
        name = f"{run.name}: {title}" if report.is_pair else title
        parts += [Heading(f"{name}, {row['request_id']}", _describe(row)), draw_waterfall(row, legend=place == 0)]
    return Section(
        "Requests",
        "When each segment happened, from the client's send to the first byte. Pale bars were hidden: they passed"
        " beside the critical path and cost nothing.",
        parts,
    )


def choose_requests(run: RunData, wanted: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Choose the wanted requests, else the slowest two and those at p90 and p50."""
    ordered = run.breakdown.budgets.sort("ttft")
    if wanted:
        found = ordered.filter(pl.col("request_id").is_in(list(wanted)))
        return [("chosen", row) for row in found.iter_rows(named=True)]
    last = ordered.height - 1
    places = {"slowest": last, "second slowest": last - 1, "p90": round(0.9 * last), "median": round(0.5 * last)}
    unique: dict[int, str] = {}
    for title, place in places.items():
        if place >= 0:
            unique.setdefault(place, title)
    return [(title, ordered.row(place, named=True)) for place, title in unique.items()]


def _describe(row: dict[str, Any]) -> str:
    late = f" Late side of the pairing: {row['late_side']}." if row.get("late_side") else ""
    return (
        f"TTFT {row['ttft'] / 1e6:,.1f} ms, {row['prompt_tokens'] or '?'} prompt tokens,"
        f" {(row['bytes'] or 0) / 1e6:,.1f} MB, {row['p_engine'] or '?'} to"
        f" {row['d_engine'] or '?'}. {word_row(row)}.{late}"
    )


def draw_waterfall(row: dict[str, Any], *, legend: bool) -> Chart:
    """Draw one row of the budgets; one legend is enough for several."""
    bars = list_bars(row)
    data: list[dict[str, Any]] = [
        {
            "segment": f"{name} (hidden)" if hidden else name, "class": CLASS_OF_BAR[name], "begin": begin / 1e6,
            "end": max(end, begin) / 1e6, "ms": charged / 1e6, "opacity": HIDDEN_OPACITY if hidden else 1.0,
        }
        for name, begin, end, charged, hidden in bars
    ]  # fmt: skip
    colour = colour_by("class", COLOUR_OF_CLASS, CLASSES)
    scale = {"domain": [0, row["ttft"] / 1e6], "nice": False}
    spec = make_spec(
        data,
        height=ROW_PX * max(1, len({entry["segment"] for entry in data})),
        mark={"type": "bar", "strokeWidth": 2},
        encoding={
            "y": {"field": "segment", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": axis_ms("begin", "ms since the client sent it", scale=scale),
            "x2": {"field": "end"},
            "color": colour | ({} if legend else {"legend": None}),
            # An outline of its own colour keeps a segment of microseconds visible beside one of seconds.
            "stroke": colour | {"legend": None},
            "opacity": {"field": "opacity", "type": "quantitative", "scale": None, "legend": None},
            "tooltip": [
                {"field": "segment"}, {"field": "class"}, {"field": "ms", "format": ",.3f"},
                {"field": "begin", "format": ",.3f", "title": "from ms"},
                {"field": "end", "format": ",.3f", "title": "to ms"},
            ],
        },
    )  # fmt: skip
    rows = [
        [entry["segment"], entry["class"], f"{entry['begin']:,.2f}", f"{entry['end']:,.2f}", f"{entry['ms']:,.2f}"]
        for entry in data
    ]
    return Chart(
        spec,
        f"Waterfall of {row['request_id']}.",
        Table(("segment", "class", "from ms", "to ms", "ms"), rows, text_columns=2),
    )

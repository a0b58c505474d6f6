"""The answer first: TTFT and TPOT of each run, where the time went by class, and the conclusion in words."""

from __future__ import annotations

from typing import Any

from ...library.headline import conclude, summarize_breakdown
from ...segments import CLASSES
from ..model import Chart, Report, RunData, Section, Table
from ..palette import BAR_PX, COLOUR_OF_CLASS, colour_by, make_spec

ORDER = 10

POINTS = ("p50", "p90", "p99")


def build(report: Report) -> Section | None:
    """Build the section."""
    rows = [(label, figures) for run in report.runs for label, figures in list_modes(run)]
    if not rows:
        return None
    lead = " ".join(f"{label}: {conclude(figures)}." for label, figures in rows if figures["segments"])
    return Section("Summary", lead, [_draw_classes(rows), _tabulate(report)])


def list_modes(run: RunData) -> list[tuple[str, dict[str, Any]]]:
    """List the modes of a run with their figures; the run's name alone where it has one mode."""
    modes: dict[str, dict[str, Any]] = summarize_breakdown(run.breakdown)["modes"]
    return [(run.name if len(modes) == 1 else f"{run.name}, {mode}", figures) for mode, figures in modes.items()]


def _draw_classes(rows: list[tuple[str, dict[str, Any]]]) -> Chart:
    names = (*CLASSES, "residual")
    data = [
        {"run": label, "class": name, "share": figures["classes"][name], "order": place}
        for label, figures in rows
        for place, name in enumerate(names)
        if figures["classes"][name] > 0
    ]
    spec = make_spec(
        data,
        height=BAR_PX * 1.4 * len(rows),
        mark={"type": "bar"},
        encoding={
            "y": {"field": "run", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": {
                "field": "share", "type": "quantitative", "stack": "zero", "scale": {"domain": [0, 1]},
                "axis": {"format": ".0%", "title": "share of all TTFT", "tickCount": 5},
            },
            "color": colour_by("class", COLOUR_OF_CLASS, [row["class"] for row in data]),
            "order": {"field": "order"},
            "tooltip": [{"field": "run"}, {"field": "class"}, {"field": "share", "format": ".1%"}],
        },
    )  # fmt: skip
    shares = [[label, *(f"{figures['classes'][name]:.1%}" for name in names)] for label, figures in rows]
    return Chart(spec, "Share of all time to first token by class.", Table(("run", *names), shares), is_stacked=True)


def _tabulate(report: Report) -> Table:
    head = ["run", "requests", "never finished", *(f"{what} {point}" for what in ("TTFT", "TPOT") for point in POINTS)]
    rows = []
    for run in report.runs:
        lost = run.breakdown.summary["unfinished"]["count"]
        for label, figures in list_modes(run):
            values = (figures[f"{what}_{point}"] for what in ("ttft", "tpot") for point in POINTS)
            shown = ("-" if value is None else f"{value:,.1f} ms" for value in values)
            rows.append([label, f"{figures['count']:,}", f"{lost:,}", *shown])
    return Table(head, rows)

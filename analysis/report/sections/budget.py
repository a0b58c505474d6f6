"""The TTFT budget as stacked bars: by percentile band (what makes p99 different from p50), and by prompt length."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...segments import CLASS_OF, MEANING, READBACK_PARTS, SEGMENTS, UNRESOLVED
from ...summary import BUCKETS, NO_BUCKET
from ..model import Chart, Heading, Report, RunData, Section, Table
from ..palette import BAR_PX, COLOUR_OF_CLASS, axis_ms, colour_by, make_spec

ORDER = 30

BANDS = (("fastest half", 0.0, 0.5), ("p50 to p90", 0.5, 0.9), ("p90 to p99", 0.9, 0.99), ("slowest 1 %", 0.99, 1.0))
NS_PER_MS = 1e6

Bar = tuple[str, pl.DataFrame]


def build(report: Report) -> Section | None:
    """Build the section."""
    if all(run.breakdown.budgets.is_empty() for run in report.runs):
        return None
    bands = _interleave([split_bands(run) for run in report.runs], report)
    lengths = _interleave([split_lengths(run) for run in report.runs], report)
    return Section(
        "TTFT budget",
        "Each bar is the mean budget of a group of requests, cut into segments in the order in which they happen; equal"
        " colour is equal class. Segments and residual add up to the TTFT.",
        [
            Heading("By percentile of TTFT", "From the fastest half of the requests to the slowest hundredth."),
            draw_bars(bands, "Mean TTFT budget by percentile band, ms."),
            Heading("By prompt length", "Prompt tokens of the requests; n is their number."),
            draw_bars(lengths, "Mean TTFT budget by prompt length, ms."),
            *_list_readbacks(report),
            Heading("What the segments are"),
            _list_segments(report),
        ],
    )


def split_bands(run: RunData) -> list[Bar]:
    """Split a run's requests by percentile of TTFT; bands without a request are left out."""
    ordered = run.breakdown.budgets.sort("ttft")
    count = ordered.height
    cuts = [(name, round(low * count), round(high * count)) for name, low, high in BANDS]
    return [(name, ordered[low:high]) for name, low, high in cuts if high > low]


def split_lengths(run: RunData) -> list[Bar]:
    """Split a run's requests by prompt-length bucket, shortest first."""
    groups = run.breakdown.budgets.partition_by("bucket", as_dict=True)
    return [(name, groups[(name,)]) for name in (*BUCKETS, NO_BUCKET) if (name,) in groups]


def _interleave(sides: list[list[Bar]], report: Report) -> list[Bar]:
    """Put equal groups of two runs beside each other, each named with its run."""
    if not report.is_pair:
        return [(f"{name} (n={rows.height:,})", rows) for name, rows in sides[0]]
    names = list(dict.fromkeys(name for side in sides for name, _ in side))
    return [
        (f"{name}, {run.name} (n={rows.height:,})", rows)
        for name in names
        for run, side in zip(report.runs, sides, strict=True)
        for label, rows in side
        if label == name
    ]


def draw_bars(bars: list[Bar], description: str) -> Chart:
    """Draw one stacked bar per group."""
    data = [entry for label, rows in bars for entry in _list_entries(label, rows)]
    spec = make_spec(
        data,
        height=(BAR_PX + 6) * len(bars),
        mark={"type": "bar", "strokeWidth": 0.7},
        encoding={
            "y": {"field": "group", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": axis_ms("ms", "mean ms", stack="zero"),
            "color": colour_by("class", COLOUR_OF_CLASS, [entry["class"] for entry in data]),
            "order": {"field": "order"},
            "tooltip": [
                {"field": "group"}, {"field": "segment"}, {"field": "class"}, {"field": "ms", "format": ",.2f"},
                {"field": "share", "format": ".1%", "title": "of TTFT"},
            ],
        },
    )  # fmt: skip
    return Chart(spec, description, _tabulate(bars), is_stacked=True)


def _list_entries(label: str, rows: pl.DataFrame) -> list[dict[str, Any]]:
    means = average(rows)
    whole = sum(means.values()) or 1.0
    return [
        {
            "group": label, "segment": name, "class": CLASS_OF.get(name, "residual"), "ms": round(value, 4),
            "share": round(value / whole, 5), "order": place,
        }
        for place, (name, value) in enumerate(means.items())
        if value > 0
    ]  # fmt: skip


def average(rows: pl.DataFrame) -> dict[str, float]:
    """Mean of every segment and of the residual over all requests of a group, ms; an absent segment took no time."""
    columns = {name: f"seg_{name}" for name in SEGMENTS} | {"residual": "residual"}
    means = rows.select(pl.col(column).fill_null(0).mean().alias(name) for name, column in columns.items())
    return {name: float(value or 0.0) / NS_PER_MS for name, value in means.row(0, named=True).items()}


def _tabulate(bars: list[Bar]) -> Table:
    means = {label: average(rows) for label, rows in bars}
    present = [name for name in (*SEGMENTS, "residual") if any(abs(one[name]) > 0 for one in means.values())]
    rows = [[name, *(f"{one[name]:,.2f}" for one in means.values())] for name in present]
    total = ["TTFT", *(f"{sum(one.values()):,.2f}" for one in means.values())]
    return Table(("ms", *means), [*rows, total], marks={len(rows): "total"})


def _list_readbacks(report: Report) -> list[Heading | Table]:
    """What the readbacks consist of; nothing where no run read anything back."""
    rows = []
    for run in report.runs:
        fetched = run.breakdown.budgets.filter(pl.col("seg_readback").is_not_null())
        for part in ("readback", *READBACK_PARTS, UNRESOLVED):
            values = fetched["seg_readback" if part == "readback" else f"rbk_{part}"].drop_nulls()
            if not values.is_empty():
                figures = [values.mean(), *(values.quantile(q, "linear") for q in (0.5, 0.9, 0.99))]
                cells = (f"{float(figure or 0.0) / NS_PER_MS:,.2f}" for figure in figures)  # type: ignore[arg-type]
                rows.append([run.name, part, READBACK_PARTS.get(part, ""), f"{values.len():,}", *cells])
    if not rows:
        return []
    head = ("run", "part", "class", "requests", "mean ms", "p50", "p90", "p99")
    title = Heading("What a readback consists of", "The fetch of an earlier turn's KV, with the parts of a hand-over.")
    return [title, Table(head, rows, text_columns=3)]


def _list_segments(report: Report) -> Table:
    frames = [run.breakdown.budgets for run in report.runs]
    present = [name for name in SEGMENTS if any(frame[f"seg_{name}"].count() for frame in frames)]
    rows = [[name, CLASS_OF[name], MEANING[name].replace("->", "→")] for name in present]
    rows.append(["residual", "", "time that no span tells apart"])
    return Table(("segment", "class", "from and to"), rows, text_columns=3)

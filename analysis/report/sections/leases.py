"""Leases: how long blocks were kept for the other side, and what ended it."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...source import Session
from ..model import Chart, Heading, Report, Section, Table
from ..palette import BAR_PX, make_spec

ORDER = 70

NS_PER_S = 1e9
# In order of how well a lease ended; the colours stay apart for colour-blind readers.
COLOUR_OF_OUTCOME = {
    "read": "#009E73",
    "sent": "#56B4E9",
    "released": "#0072B2",
    "aborted": "#E69F00",
    "expired": "#D55E00",
    "unknown": "#8C8C8C",
}
LOST = ("expired",)


def load(session: Session) -> pl.DataFrame:
    """Load the leases of a run: rows of sql/evidence.sql."""
    return session.query("evidence").filter(pl.col("name") == "lease")


def build(report: Report) -> Section | None:
    """Build the section; None when no engine kept blocks for another."""
    known = [(run.name, run.loaded.get("leases")) for run in report.runs]
    leases = [(name, frame) for name, frame in known if frame is not None and not frame.is_empty()]
    if not leases:
        return None
    parts: list[Any] = [draw_outcomes(leases, report), Heading("By engine and outcome"), tabulate(leases)]
    return Section("Leases", " ".join(_conclude(name, frame) for name, frame in leases), parts)


def _conclude(name: str, frame: pl.DataFrame) -> str:
    held = ((frame["finish"] - frame["begin"]) / NS_PER_S).sort()
    lost = frame.filter(pl.col("outcome").is_in(LOST)).height
    middle, longest = float(held[held.len() // 2]), float(held[-1])
    text = f"{name}: {frame.height:,} leases, held {middle:.2f} s at the median and {longest:.2f} s at most"
    return f"{text}; {lost:,} expired before they were used." if lost else f"{text}; none expired."


def draw_outcomes(leases: list[tuple[str, pl.DataFrame]], report: Report) -> Chart:
    """Draw how the leases of each engine ended."""
    data = [
        {
            "engine": f"{row['engine']}, {name}" if report.is_pair else row["engine"],
            "outcome": row["outcome"] or "unknown",
            "leases": row["len"],
        }
        for name, frame in leases
        for row in frame.group_by("engine", "outcome").len().sort("engine", "outcome").iter_rows(named=True)
    ]
    present = [name for name in COLOUR_OF_OUTCOME if any(entry["outcome"] == name for entry in data)]
    spec = make_spec(
        data,
        height=BAR_PX * 1.4 * len({entry["engine"] for entry in data}),
        mark={"type": "bar"},
        encoding={
            "y": {"field": "engine", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": {"field": "leases", "type": "quantitative", "axis": {"title": "leases", "tickCount": 5}},
            "color": {
                "field": "outcome", "type": "nominal",
                "scale": {"domain": present, "range": [COLOUR_OF_OUTCOME[name] for name in present]},
            },
            "tooltip": [{"field": "engine"}, {"field": "outcome"}, {"field": "leases", "format": ",d"}],
        },
    )  # fmt: skip
    return Chart(spec, "Leases by engine and by what ended them.", is_stacked=True)


def tabulate(leases: list[tuple[str, pl.DataFrame]]) -> Table:
    """Tabulate count, blocks, time held and extensions."""
    held = (pl.col("finish") - pl.col("begin")) / NS_PER_S
    rows = []
    for name, frame in leases:
        grouped = frame.group_by("engine", "outcome").agg(
            leases=pl.len(), blocks=pl.col("blocks").sum(), half=held.median(), most=held.max(),
            heartbeats=pl.col("heartbeats").sum(),
        )  # fmt: skip
        rows += [
            [name, row["engine"], row["outcome"] or "unknown", f"{row['leases']:,}", f"{row['blocks']:,}",
             f"{row['half']:.3f}", f"{row['most']:.3f}", f"{row['heartbeats']:,}"]
            for row in grouped.sort("engine", "outcome").iter_rows(named=True)
        ]  # fmt: skip
    head = ("run", "engine", "outcome", "leases", "blocks", "held p50 s", "held max s", "extensions")
    return Table(head, rows, text_columns=3)

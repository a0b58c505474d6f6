"""Leases: which blocks were held for whom, how they ended, what was held for nothing, and the retention curve."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...render.leases import word_limits
from ...reuse.leases import LeaseReport, report_leases
from ...reuse.ledger import REASONS, RUNNING
from ...source import Session
from ..model import Chart, Heading, Notes, Report, Section, Table
from ..palette import BAR_PX, COLOUR_OF_RUN, make_spec

ORDER = 70

NS_PER_S = 1e9
# In order of how well a lease ended; the colours stay apart for colour-blind readers.
COLOUR_OF_OUTCOME = {
    "read": "#009E73",
    "sent": "#56B4E9",
    "received": "#F0E442",
    "released": "#0072B2",
    "declined": "#CC79A7",
    "aborted": "#E69F00",
    "expired": "#D55E00",
    "unknown": "#8C8C8C",
    "unheard": "#000000",
}


def load(session: Session) -> LeaseReport:
    """Load the held blocks of a run; KvlensError when no engine told of any lease."""
    return report_leases(session)


def build(report: Report) -> Section | None:
    """Build the section; None when no engine kept blocks for another."""
    known = [(run.name, run.loaded["leases"]) for run in report.runs if run.loaded.get("leases") is not None]
    known = [(name, one) for name, one in known if not list_leases(one).is_empty()]
    if not known:
        return None
    parts: list[Any] = [
        draw_outcomes(known, report),
        Heading("Ledger by engine and reason"),
        tabulate(known),
        explain(known),
    ]
    parts += [Heading("Balance"), Notes([line for name, one in known for line in word_balance(name, one)])]
    curves = [(name, one) for name, one in known if one.retention is not None and one.retention.points.height > 1]
    if curves:
        parts += [
            Heading("Retention curve", "How long decode keeps a turn's blocks for the next one."),
            *draw_retention(curves),
        ]
    return Section("Leases", " ".join(_conclude(name, one) for name, one in known), parts)


def list_leases(one: LeaseReport) -> pl.DataFrame:
    """List the leases without warm-ups."""
    return one.holdings.filter((pl.col("reason") != RUNNING) & ~pl.col("is_warmup"))


def _conclude(name: str, one: LeaseReport) -> str:
    frame = list_leases(one)
    held = (frame["held_ns"] / NS_PER_S).sort()
    middle, longest = float(held[held.len() // 2]), float(held[-1])
    lost = frame.filter(pl.col("outcome") == "expired").height
    whole, wasted = (
        float(one.ledger.filter(pl.col("reason") != RUNNING)[column].sum()) for column in ("block_s", "wasted_block_s")
    )
    text = f"{name}: {frame.height:,} leases, held {middle:.2f} s at the median and {longest:.2f} s at most"
    ended = f"{lost:,} expired before they were used" if lost else "none expired"
    return f"{text}; {ended}; {wasted / whole if whole else 0:.0%} of {whole:,.0f} block-seconds were for nothing."


def draw_outcomes(known: list[tuple[str, LeaseReport]], report: Report) -> Chart:
    """Draw how the leases of each engine and reason ended."""
    data = [
        {
            "engine": f"{row['engine']} {row['reason']}{f', {name}' if report.is_pair else ''}",
            "outcome": row["outcome"] or "unknown",
            "leases": row["len"],
        }
        for name, one in known
        for row in list_leases(one)
        .group_by("engine", "reason", "outcome")
        .len()
        .sort("engine", "reason", "outcome")
        .iter_rows(named=True)
    ]
    present = [name for name in COLOUR_OF_OUTCOME if any(entry["outcome"] == name for entry in data)]
    spec = make_spec(
        data,
        height=BAR_PX * 1.4 * len({entry["engine"] for entry in data}),
        mark={"type": "bar"},
        encoding={
            "y": {"field": "engine", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 260}},
            "x": {"field": "leases", "type": "quantitative", "axis": {"title": "leases", "tickCount": 5}},
            "color": {
                "field": "outcome", "type": "nominal",
                "scale": {"domain": present, "range": [COLOUR_OF_OUTCOME[name] for name in present]},
            },
            "tooltip": [{"field": "engine"}, {"field": "outcome"}, {"field": "leases", "format": ",d"}],
        },
    )  # fmt: skip
    return Chart(spec, "Leases by engine and reason, and by what ended them.", is_stacked=True)


def tabulate(known: list[tuple[str, LeaseReport]]) -> Table:
    """Tabulate block-seconds and GB-seconds, used and wasted, and the ages at which blocks were read."""
    rows = [
        [name, row["engine"], row["reason"], f"{row['leases']:,}", f"{row['blocks']:,}",
         *(_figure(row[column], 1) for column in ("block_s", "used_block_s", "wasted_block_s", "open_block_s")),
         *(_figure(row[column], 3) for column in ("gb_s", "wasted_gb_s", "age_p50_s", "age_p99_s")),
         f"{row['heartbeats']:,}", f"{row['late_reads']:,}"]
        for name, one in known
        for row in one.ledger.iter_rows(named=True)
    ]  # fmt: skip
    head = ("run", "engine", "reason", "leases", "blocks", "block-s", "used", "wasted", "open", "GB-s",
            "GB-s wasted", "age at read p50 s", "p99 s", "heartbeats", "read after expiry")  # fmt: skip
    return Table(head, rows, text_columns=3)


def explain(known: list[tuple[str, LeaseReport]]) -> Notes:
    """Explain the reasons that occur."""
    present = {reason for _, one in known for reason in one.ledger["reason"]}
    return Notes([f"{reason}: {words}." for reason, words in REASONS.items() if reason in present])


def word_balance(name: str, one: LeaseReport) -> list[str]:
    """Word whether all blocks came back, and how the ledger stands to vLLM's own cache usage."""
    lines = []
    for entry in one.balance:
        open_ones = f"; {len(entry['held'])} leases open at the end ({entry['open']:,} blocks)" if entry["held"] else ""
        silent = f"; {entry['unheard']} of them were never told of" if entry["unheard"] else ""
        lines.append(
            f"{name}, {entry['engine']}: {entry['taken']:,} blocks taken, {entry['released']:,} released"
            f"{open_ones}{silent}."
        )
    for entry in one.usage:
        apart = "not comparable" if entry["difference"] is None else f"{entry['difference']:+.1%}"
        lines.append(
            f"{name}, {entry['engine']}: the ledger has {entry['ledger_block_s']:,.1f} block-seconds,"
            f" vLLM's own cache usage {entry['measured_block_s']:,.1f} over {entry['window_s']:.1f} s: {apart}."
        )
    return lines


def draw_retention(curves: list[tuple[str, LeaseReport]]) -> list[Chart | Notes]:
    """Draw retention -> block-seconds kept, with the fetches that it loses; beyond the recorded one it is a bound."""
    points = [
        (name, row) for name, one in curves if one.retention for row in one.retention.points.iter_rows(named=True)
    ]
    data = [
        {
            "run": name, "retention": row["retention_s"], "kept": round(row["block_s"], 3), "lost": row["lost"],
            "won": row["won"], "known": "recorded or shorter" if row["is_known"] else "at most",
        }
        for name, row in points
    ]  # fmt: skip
    names = [name for name, _ in curves]
    colour = {"field": "run", "type": "nominal", "scale": {"domain": names, "range": list(COLOUR_OF_RUN[: len(names)])}}
    x = {"field": "retention", "type": "quantitative", "axis": {"title": "retention, s"}}
    tooltip = [{"field": name} for name in ("run", "retention", "kept", "lost", "won", "known")]
    layers = [
        {"mark": {"type": "line"}, "encoding": {
            "x": x, "y": {"field": "kept", "type": "quantitative", "axis": {"title": "block-seconds kept"}},
            "color": colour}},
        {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": {
            "x": x, "y": {"field": "kept", "type": "quantitative"}, "color": colour, "tooltip": tooltip,
            "shape": {"field": "known", "type": "nominal"}}},
    ]  # fmt: skip
    rows = [
        [name, f"{row['retention_s']:,.2f}", f"{row['block_s']:,.1f}", _figure(row["gb_s"], 3), str(row["lost"]),
         str(row["won"]), "recorded" if row["is_recorded"] else "" if row["is_known"] else "at most"]
        for name, row in points
    ]  # fmt: skip
    head = ("run", "retention s", "block-s", "GB-s", "fetches lost", "won", "")
    chart = Chart(
        make_spec(data, height=220, layer=layers),
        "Block-seconds kept for a next turn by retention; the tooltip has the fetches lost and won.",
        Table(head, rows),
    )
    limits = [f"{name}: {line}" for name, one in curves if one.retention for line in word_limits(one.retention)]
    return [chart, Notes(limits)]


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"

"""Terminal tables of a breakdown: segments per mode, prompt-length buckets, slowest and unfinished requests."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..breakdown import Breakdown
from ..reasons import word_reason
from ..segments import CLASS_OF, CLASSES, READBACK_PARTS, SEGMENTS
from .notes import list_notes

STYLE_OF_CLASS = {
    "compute": "green",
    "queue": "yellow",
    "coordination": "magenta",
    "transfer": "cyan",
    "frontend": "blue",
    "routing": "white",
}
POINTS = ("p50", "p90", "p99")


def render_table(breakdown: Breakdown, slowest: int) -> RenderableType:
    """Render one run."""
    parts: list[RenderableType] = []
    for mode, summary in breakdown.summary["modes"].items():
        parts += [render_mode(mode, summary), render_buckets(summary["buckets"]), Text()]
    if slowest and not breakdown.budgets.is_empty():
        parts += [render_slowest(breakdown.budgets, slowest), Text()]
    if not breakdown.unfinished.is_empty():
        parts += [render_unfinished(breakdown), Text()]
    return Group(*parts, *(Text(note) for note in list_notes(breakdown)))


def render_mode(mode: str, summary: dict[str, Any]) -> RenderableType:
    """Render the budget of one mode: each segment's percentiles (ms) and its share of all TTFT."""
    table = make_table()
    table.add_column("segment")
    table.add_column("class")
    for name in (*POINTS, "mean", "share"):
        table.add_column(name, justify="right")
    for name in SEGMENTS:
        entry = summary["segments"].get(name)
        if entry:
            style = STYLE_OF_CLASS[entry["class"]]
            unsure = is_unresolved(entry)
            table.add_row(
                name + (" ~" if unsure else ""), Text(entry["class"], style), *_figures(entry), f"{entry['share']:.1%}"
            )
        for part, inner in summary.get("readback", {}).items() if name == "readback" else ():
            table.add_row(f"  {part}", Text(READBACK_PARTS.get(part, ""), "dim"), *_figures(inner), "", style="dim")
    table.add_row(
        "residual", "", *_figures(summary["residual_ms"]), f"{summary['classes']['residual']:.1%}", end_section=True
    )
    table.add_row("TTFT", "", *_figures(summary["ttft_ms"]), "100 %", style="bold")
    if summary["tpot_ms"]["count"]:
        table.add_row("TPOT", "", *_figures(summary["tpot_ms"]), "")
    for name, entry in summary["hidden"].items():
        if entry["max"] > 0:
            table.add_row(f"hidden {name}", Text(CLASS_OF[name], "dim"), *_figures(entry), "", style="dim")
    shares = ", ".join(f"{kind} {summary['classes'][kind]:.1%}" for kind in (*CLASSES, "residual"))
    return Group(add_title(f"TTFT budget, {mode}: {summary['count']} requests (ms)", table), Text(f"share: {shares}"))


def is_unresolved(entry: dict[str, Any]) -> bool:
    """Whether a segment is smaller than what the landing or the clocks at its ends may err (medians compared)."""
    return bool(entry["p50"] < entry.get("uncertainty_ms", 0.0))


def render_buckets(buckets: dict[str, Any]) -> RenderableType:
    """Render TTFT, the shares of the classes and each segment's percentiles by prompt length."""
    table = make_table()
    table.add_column("")
    for name, summary in buckets.items():
        table.add_column(f"{name} (n={summary['count']})", justify="right")
    table.add_row("TTFT", *(_triple(summary["ttft_ms"]) for summary in buckets.values()), style="bold")
    if any(summary["tpot_ms"]["count"] for summary in buckets.values()):
        table.add_row("TPOT", *(_triple(summary["tpot_ms"]) for summary in buckets.values()), end_section=True)
    for kind in (*CLASSES, "residual"):
        shares = (f"{summary['classes'][kind]:.1%}" for summary in buckets.values())
        table.add_row(Text(kind, STYLE_OF_CLASS.get(kind, "")), *shares, end_section=kind == "residual")
    for name in SEGMENTS:
        cells = [_triple(summary["segments"].get(name)) for summary in buckets.values()]
        if any(cells):
            table.add_row(name, *cells)
    return add_title("By prompt length (tokens); each segment as p50 / p90 / p99 in ms", table)


def render_slowest(budgets: pl.DataFrame, count: int) -> RenderableType:
    """Render the slowest requests, each with the one-line reason."""
    table = make_table()
    for name, side in (("request", "left"), ("mode", "left"), ("TTFT ms", "right"), ("why", "left")):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in budgets[budgets["ttft"].arg_sort(descending=True).head(count)].iter_rows(named=True):
        table.add_row(row["request_id"], row["mode"], f"{row['ttft'] / 1e6:.1f}", word_row(row))
    return add_title("Slowest first tokens", table)


def word_row(row: dict[str, Any]) -> str:
    """Word the reason of a budget row."""
    columns = ("reason_ns", "reason_excess_ns", "ttft", "residual", "reason_unc_ns")
    figures = (row[name] / 1e6 for name in columns)
    missing = f" [no spans of {' and '.join(row['missing'])}]" if row["missing"] else ""
    if row.get("unknown"):
        missing += f" [clocks not related: {', '.join(row['unknown'])} unknown]"
    return word_reason(row["reason_segment"], *figures) + missing


def render_unfinished(breakdown: Breakdown, limit: int = 10) -> RenderableType:
    """Render how many requests never finished and what they waited for."""
    rows = breakdown.unfinished
    table = make_table()
    for name in ("waiting for", "requests", "first token", "for example"):
        table.add_column(name)
    groups = rows.group_by("waiting_for").agg(
        pl.len(), pl.col("has_first").sum(), pl.col("request_id").first(), pl.col("r_error").drop_nulls().first()
    )
    for waiting, count, first, example, error in groups.sort("len", descending=True).head(limit).iter_rows():
        table.add_row(waiting, str(count), str(first), f"{example}{f': {error}' if error else ''}")
    return add_title(f"{rows.height} requests never finished", table)


def make_table() -> Table:
    """Make a table in the house's style."""
    return Table(header_style="bold", pad_edge=False)


def add_title(title: str, table: Table) -> RenderableType:
    """Put a title above a table; rich's own would be folded at the table's width."""
    return Group(Text(title, "bold italic"), table)


def _figures(entry: dict[str, Any]) -> list[str]:
    return [f"{entry[name]:.1f}" if name in entry else "-" for name in (*POINTS, "mean")]


def _triple(entry: dict[str, Any] | None) -> str:
    return " / ".join(f"{entry[name]:.1f}" for name in POINTS) if entry and entry["count"] else ""

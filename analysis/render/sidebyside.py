"""Several runs side by side: both budgets as columns, next to what the clients themselves measured."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..breakdown import Breakdown
from ..segments import CLASSES, SEGMENTS
from .notes import list_notes
from .table import POINTS, STYLE_OF_CLASS, add_title, make_table

Columns = list[tuple[str, dict[str, Any]]]


def render_side_by_side(breakdowns: list[Breakdown]) -> RenderableType:
    """Render the budgets of several runs as columns, p50 / p90 / p99 in ms and the share of TTFT."""
    columns: Columns = [
        (f"{item.run.name} ({mode}, n={summary['count']})", summary)
        for item in breakdowns
        for mode, summary in item.summary["modes"].items()
    ]
    notes = [Text(f"{item.run.name}: {note}") for item in breakdowns for note in list_notes(item)]
    return Group(_render_budgets(columns), Text(), _render_clients(breakdowns), Text(), *notes)


def _render_budgets(columns: Columns) -> RenderableType:
    table = make_table()
    table.add_column("segment")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for segment in SEGMENTS:
        entries = [summary["segments"].get(segment) for _, summary in columns]
        if any(entries):
            table.add_row(segment, *(_cell(entry, entry and entry["share"]) for entry in entries))
    table.add_row(
        "residual",
        *(_cell(summary["residual_ms"], summary["classes"]["residual"]) for _, summary in columns),
        end_section=True,
    )
    table.add_row("TTFT", *(_cell(summary["ttft_ms"], None) for _, summary in columns), style="bold")
    table.add_row("TPOT", *(_cell(summary["tpot_ms"], None) for _, summary in columns), end_section=True)
    for kind in CLASSES:
        shares = (f"{summary['classes'][kind]:.1%}" for _, summary in columns)
        table.add_row(Text(kind, STYLE_OF_CLASS[kind]), *shares)
    return add_title("TTFT budgets: p50 / p90 / p99 in ms, share of TTFT", table)


def _render_clients(breakdowns: list[Breakdown]) -> RenderableType:
    table = make_table()
    table.add_column("")
    for item in breakdowns:
        table.add_column(item.run.name, justify="right")
    clients = [item.summary["client"] for item in breakdowns]
    table.add_row("requests (ok)", *(f"{c['requests']} ({c['ok']})" if c else "no client.jsonl" for c in clients))
    table.add_row("client TTFT p50 / p90 / p99", *(_cell(c["ttft_ms"], None) if c else "" for c in clients))
    table.add_row("budget less client, |residual| p50 / p99", *(_residual(c) for c in clients))
    table.add_row("never finished", *(str(item.summary["unfinished"]["count"]) for item in breakdowns))
    return add_title("As the clients measured it (another process), ms", table)


def _residual(client: dict[str, Any] | None) -> str:
    if not client or not client["matched"]:
        return ""
    return f"{client['abs_residual_ms']['p50']:.2f} / {client['abs_residual_ms']['p99']:.2f}"


def _cell(entry: dict[str, Any] | None, share: float | None) -> str:
    if not entry or not entry["count"]:
        return ""
    figures = " / ".join(f"{entry[name]:.1f}" for name in POINTS)
    return figures if share is None else f"{figures}  {share:6.1%}"

"""Conversations as terminal tables: tasks, growth turn over turn, single conversations, several runs side by side."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ..compare.estimate import Estimate
from ..reuse.conversations import ConversationReport, choose_base, describe_conditions, put_beside
from ..reuse.turns import Slope
from .table import add_title, make_table

NS_PER_MS = 1e6
NS_PER_S = 1e9
TOKENS = ("context", "reused", "cached", "computed")
TIMES = ("completion", "gaps", "first_token", "generation", "rest", "engine")
SHOWN = ("prefill_queue", "readback", "prefill_compute")
"""Segments of a turn that have a column of their own; the others are summed."""


def render_conversations(reports: list[ConversationReport], show: int, wanted: str | None) -> RenderableType:
    """Render one run, or several side by side. show: conversations listed turn by turn. wanted: this one only."""
    if len(reports) > 1:
        return render_side_by_side(reports)
    report = reports[0]
    parts = [] if wanted else [render_tasks(report), render_growth(report)]
    names = [wanted] if wanted else report.tasks["conversation"].head(show).to_list()
    parts += [render_turns(report, name) for name in names]
    return Group(*(piece for part in parts for piece in (part, Text())))


def render_tasks(report: ConversationReport, limit: int = 15) -> RenderableType:
    """Render each conversation as one task."""
    table = make_table()
    table.add_column("conversation", overflow="fold", min_width=24)
    for name in ("turns", "context", "reused", "cached", "computed", "total s", "gaps", "first tokens", "generation",
                 "rest", "engine s"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in report.tasks.head(limit).iter_rows(named=True):
        table.add_row(
            row["conversation"], str(row["turns"]), *(_whole(row[name]) for name in TOKENS),
            *(_seconds(row[f"{name}_ns"]) for name in TIMES),
        )  # fmt: skip
    many = report.tasks.height
    title = f"Conversations of {report.run.name}: {many}, {report.turns.height} turns, {report.label}"
    notes = [
        "total = gaps (tools and people) + first tokens (waits) + generation + rest; engine: what an engine"
        " computed for it meanwhile"
    ]
    notes += [f"{many - limit} more in --json"] if many > limit else []
    notes += [f"{report.alone} requests belong to no conversation"] if report.alone else []
    derived = report.tasks.filter(pl.col("link") == "derived").height
    notes += (
        [f"{derived} were put together from the requests that were read back, as they had no id"] if derived else []
    )
    return Group(add_title(title, table), *(Text(note, "dim") for note in notes))


def render_growth(report: ConversationReport) -> RenderableType:
    """Render what becomes of a turn as the conversation grows."""
    table = make_table()
    for name in ("turn", "requests", "gap s", "context", "reused", "cached", "computed", "TTFT p50 ms", "p90",
                 *(name.removeprefix("prefill_") for name in SHOWN), "TPOT ms"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in report.growth.iter_rows(named=True):
        table.add_row(
            str(row["turn"]), str(row["requests"]), _seconds(row["gap_ns"], 1),
            *(_whole(row[name]) for name in TOKENS),
            _ms(row["ttft"]), _ms(row["ttft_p90"]), *(_ms(row[f"seg_{name}"]) for name in SHOWN),
            _ms(row["tpot_ns"], 2),
        )  # fmt: skip
    slope = f"; TTFT of later turns: {word_slope(report.slope)}" if report.slope else ""
    return add_title(f"Turn over turn (medians{slope})", table)


def word_slope(slope: Slope) -> str:
    """Word how the TTFT grows."""
    return f"{slope.value:+.1f} ms per 1,000 tokens of context ({slope.low:+.1f} .. {slope.high:+.1f})"


def render_turns(report: ConversationReport, name: str) -> RenderableType:
    """Render one conversation turn by turn."""
    table = make_table()
    for column in ("turn", "gap s", "context", "reused", "cached", "computed"):
        table.add_column(column, justify="right")
    for column in ("offered", "decision"):
        table.add_column(column, no_wrap=True)
    for column in ("TTFT ms", *(segment.removeprefix("prefill_") for segment in SHOWN), "rest", "TPOT"):
        table.add_column(column, justify="right")
    for row in report.turns.filter(pl.col("conversation") == name).iter_rows(named=True):
        shown = sum(row[f"seg_{segment}"] or 0 for segment in SHOWN)
        table.add_row(
            str(row["turn"]), _seconds(row["gap_ns"], 1),
            *(_whole(row[column]) for column in TOKENS), row["offered"] or "",
            Text("wrong prefix", "bold red") if row["prefix"] == "no" else row["reason"] or "", _ms(row["ttft"]),
            *(_ms(row[f"seg_{segment}"]) for segment in SHOWN),
            _ms(row["ttft"] - shown), _ms(row["tpot_ns"], 2),
        )  # fmt: skip
    return add_title(f"Conversation {name}", table)


def render_side_by_side(reports: list[ConversationReport]) -> RenderableType:
    """Render several runs beside each other: their conditions, turn by turn, and what one gained on the other."""
    parts = [render_conditions(reports), render_turn_medians(reports), render_differences(reports)]
    return Group(*(piece for part in parts for piece in (part, Text())))


def render_conditions(reports: list[ConversationReport]) -> RenderableType:
    """Render the conditions of the runs, and what the spans say of re-use."""
    table = make_table()
    table.add_column("condition")
    conditions = [describe_conditions(report.run) for report in reports]
    for report in reports:
        table.add_column(report.run.name, overflow="fold")
    table.add_row("re-use seen in the spans", *(report.label for report in reports), style="bold")
    for name in dict.fromkeys(key for one in conditions for key in one):
        table.add_row(name, *(str(one.get(name, "")) for one in conditions))
    return add_title("Conditions", table)


def render_turn_medians(reports: list[ConversationReport]) -> RenderableType:
    """Render each turn's medians in all runs: TTFT, what was computed, and what it waited for the readback."""
    table = make_table()
    table.add_column("turn", justify="right")
    for report in reports:
        table.add_column(f"{report.run.name} ({report.label})", justify="right")
    for turn in sorted({int(turn) for report in reports for turn in report.growth["turn"]}):
        cells = []
        for report in reports:
            rows = report.growth.filter(pl.col("turn") == turn)
            cells.append(_cell(rows.row(0, named=True)) if rows.height else "")
        table.add_row(str(turn), *cells)
    table.add_section()
    medians = [report.tasks.select((pl.col("completion_ns") - pl.col("gaps_ns")).median()).item() for report in reports]
    table.add_row("task", *(f"{_seconds(value)} s without gaps" for value in medians))
    slopes = (word_slope(report.slope) if report.slope else "" for report in reports)
    table.add_row("growth", *slopes)
    return add_title("Turn over turn: median TTFT = compute + readback + other, ms", table)


def render_differences(reports: list[ConversationReport]) -> RenderableType:
    """Render the paired differences against the run without re-use, or the first one."""
    base = choose_base(reports)
    lines: list[str] = []
    for place, report in enumerate(reports):
        if place == base:
            continue
        beside = put_beside(reports[base], report)
        lines += [
            f"{report.run.name} ({report.label}) less {beside.base} ({reports[base].label}):",
            f"  TTFT of first turns {_interval(beside.first)}",
            f"  TTFT of later turns {_interval(beside.later)}",
            f"  task without gaps   {_interval(beside.tasks)}",
        ]
        changed = [one for one in beside.conditions if one.status != "noted"]
        if changed:
            groups = ", ".join(dict.fromkeys(one.group for one in changed))
            lines.append(f"  conditions that differ: {groups} (all: kvlens compare)")
    lines += [
        "Pairs are equal turns of equal conversations. First turns have nothing to re-use: what differs there is the"
        " machine or chance, and may be in the others as well.",
        "One run each: what varies from run to run is not in the intervals.",
    ]
    return Group(Text("Gain", "bold italic"), Text("\n".join(lines)))


def _interval(one: Estimate) -> str:
    if math.isnan(one.difference):
        return "no pairs: the runs name different conversations"
    verdict = (
        "no evidence of a difference" if one.low <= 0 <= one.high else "faster" if one.difference < 0 else "slower"
    )
    return f"{one.difference:+.1f} ms ({one.low:+.1f} .. {one.high:+.1f}, {one.requests[0]} pairs): {verdict}"


def _cell(row: dict[str, Any]) -> str:
    compute, readback = (row[f"seg_{name}"] or 0 for name in ("prefill_compute", "readback"))
    other = row["ttft"] - compute - readback
    return f"{_ms(row['ttft'])} = {_ms(compute)} + {_ms(readback)} + {_ms(other)}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _seconds(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value / NS_PER_S:,.{digits}f}"


def _ms(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value / NS_PER_MS:,.{digits}f}"

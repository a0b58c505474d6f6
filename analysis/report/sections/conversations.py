"""Conversations: what becomes of a turn as the history grows, and where the time of whole tasks went."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...render.conversations import word_slope
from ...reuse.conversations import ConversationReport, summarize_conversations
from ...source import Session
from ..model import Chart, Heading, Report, RunData, Section, Table
from ..palette import BAR_PX, make_spec

ORDER = 66

NS_PER_MS, NS_PER_S = 1e6, 1e9
COLOUR_OF_PART = {
    "prefill compute": "#009E73", "readback": "#56B4E9", "prefill queue": "#E69F00", "everything else": "#8C8C8C",
}  # fmt: skip
SEGMENT_OF = {
    "prefill compute": "seg_prefill_compute",
    "readback": "seg_readback",
    "prefill queue": "seg_prefill_queue",
}
COLOUR_OF_TIME = {
    "first tokens": "#CC79A7", "generation": "#009E73", "gaps (tools, people)": "#8C8C8C", "rest": "#D55E00",
}  # fmt: skip
COLUMN_OF_TIME = {"first tokens": "first_token_ns", "generation": "generation_ns", "gaps (tools, people)": "gaps_ns",
                  "rest": "rest_ns"}  # fmt: skip


def load(session: Session) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Load what links requests: rows of sql/conversations.sql and sql/decisions.sql."""
    return session.query("conversations"), session.query("decisions")


def build(report: Report) -> Section | None:
    """Build the section; None when no conversation has a second turn."""
    found = ((run.name, _summarize(run)) for run in report.runs)
    known = [(name, one) for name, one in found if one is not None and one.growth.height > 1]
    if not known:
        return None
    parts: list[Heading | Chart] = [
        Heading("Turn over turn", "Mean TTFT of all first turns, second turns, ..., by what it consisted of."),
        draw_turns(known), Heading("Tasks", "Mean time of a whole conversation."), draw_tasks(known),
    ]  # fmt: skip
    return Section("Conversations", " ".join(_conclude(name, one) for name, one in known), parts)


def _summarize(run: RunData) -> ConversationReport | None:
    links = run.loaded.get("conversations")
    return summarize_conversations(run.breakdown.run, run.breakdown.budgets, *links) if links else None


def _conclude(name: str, one: ConversationReport) -> str:
    slope = f"; TTFT of later turns {word_slope(one.slope)}" if one.slope else ""
    return f"{name}: {one.tasks.height:,} conversations, {one.turns.height:,} turns, {one.label}{slope}."


def average_turns(one: ConversationReport) -> list[dict[str, Any]]:
    """Average the TTFT of each turn by part, ms."""
    means = one.turns.group_by("turn").agg(
        pl.len(), pl.col("ttft").mean(), pl.col("context").mean(),
        **{part: pl.col(column).fill_null(0).mean() for part, column in SEGMENT_OF.items()},
    ).sort("turn")  # fmt: skip
    rest = pl.col("ttft") - pl.sum_horizontal(list(SEGMENT_OF))
    return means.with_columns(rest.alias("everything else")).to_dicts()


def draw_turns(known: list[tuple[str, ConversationReport]]) -> Chart:
    """Draw the mean TTFT of each turn as a stacked bar."""
    rows = [(name, row) for name, one in known for row in average_turns(one)]
    data = [
        {
            "turn": f"{name if len(known) > 1 else ''} turn {row['turn']}".strip(), "part": part, "order": place,
            "ms": round(row[part] / NS_PER_MS, 3), "context": round(row["context"] or 0), "n": row["len"],
        }
        for name, row in rows
        for place, part in enumerate(COLOUR_OF_PART)
    ]  # fmt: skip
    table = [
        [name, str(row["turn"]), f"{row['len']:,}", f"{row['context'] or 0:,.0f}",
         *(f"{row[part] / NS_PER_MS:,.2f}" for part in COLOUR_OF_PART), f"{row['ttft'] / NS_PER_MS:,.2f}"]
        for name, row in rows
    ]  # fmt: skip
    head = ("run", "turn", "requests", "context", *COLOUR_OF_PART, "TTFT ms")
    return _stack(
        data, rows="turn", value="ms", title="mean TTFT, ms", colours=COLOUR_OF_PART, table=Table(head, table)
    )


def draw_tasks(known: list[tuple[str, ConversationReport]]) -> Chart:
    """Draw the mean completion time of a task by what it consisted of."""
    means = {name: {part: _seconds(one, column) for part, column in COLUMN_OF_TIME.items()} for name, one in known}
    data = [
        {"run": name, "part": part, "seconds": round(max(value, 0.0), 4), "order": place}
        for name, parts in means.items()
        for place, (part, value) in enumerate(parts.items())
    ]
    table = [
        [name, *(f"{value:,.3f}" for value in means[name].values()), f"{_seconds(one, 'engine_ns'):,.3f}"]
        for name, one in known
    ]
    head = ("run, s", *COLUMN_OF_TIME, "of which an engine computed")
    return _stack(
        data, rows="run", value="seconds", title="mean s per conversation", colours=COLOUR_OF_TIME,
        table=Table(head, table),
    )  # fmt: skip


def _seconds(one: ConversationReport, column: str) -> float:
    """Mean of a column of the tasks, s."""
    return float(one.tasks[column].cast(pl.Float64).mean() or 0.0) / NS_PER_S  # type: ignore[arg-type]


def _stack(
    data: list[dict[str, Any]], *, rows: str, value: str, title: str, colours: dict[str, str], table: Table
) -> Chart:
    scale = {"domain": [*colours], "range": [*colours.values()]}
    spec = make_spec(
        data,
        height=BAR_PX * 1.4 * len({entry[rows] for entry in data}),
        mark={"type": "bar"},
        encoding={
            "y": {"field": rows, "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": {"field": value, "type": "quantitative", "stack": "zero", "axis": {"title": title, "tickCount": 5}},
            "color": {"field": "part", "type": "nominal", "scale": scale},
            "order": {"field": "order"},
            "tooltip": [{"field": name} for name in data[0] if name != "order"],
        },
    )  # fmt: skip
    return Chart(spec, f"{title[0].upper()}{title[1:]}, by what it consisted of.", table, is_stacked=True)

"""Panels that are no graph: a number, a table, a request's waterfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from instrumented_connectors import catalogue as names

from .charts import LIMIT_COLOURS, colour_of, read_limits
from .read import Answer, Panel
from .units import write_value

MAX_ROWS = 40


def render_number(panel: Panel, answer: Answer) -> str:
    """Return the big number of a stat panel, coloured by its limits."""
    unit = str(panel["fieldConfig"]["defaults"].get("unit", ""))
    value = answer.series[0][1].points[-1][1]
    coloured = panel["options"].get("colorMode") != "none"
    text, colour = escape(write_value(unit, value)), colour_value(panel, value) if coloured else "inherit"
    return f'<p class="number" style="color:{colour}">{text}</p>'


def colour_value(panel: Panel, value: float) -> str:
    """Return the colour that a panel's limits give to a value."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    base = next((step["color"] for step in steps if step["value"] is None), "green")
    colour = [base, *(colour for limit, colour in read_limits(panel) if value >= limit)][-1]
    return LIMIT_COLOURS.get(colour, colour)


def render_table(panel: Panel, answer: Answer) -> str:
    """Return a table panel: its columns in the query's order, values with their unit, sorted as the panel says."""
    rows = list(answer.rows)
    sort = (panel.get("options", {}).get("sortBy") or [{}])[0]
    if sort.get("displayName") in rows[0]:
        rows.sort(key=lambda row: _order(row[sort["displayName"]]), reverse=bool(sort.get("desc")))
    # Series differ in their labels; a column that is empty in all rows is left out.
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) not in ("", None) for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(_cell(panel, name, row.get(name)) for name in columns)}</tr>" for row in rows[:MAX_ROWS]
    )
    more = f'<p class="faint">and {len(rows) - MAX_ROWS} more rows</p>' if len(rows) > MAX_ROWS else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>'


def _order(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else 0.0


def _cell(panel: Panel, name: str, value: Any) -> str:
    unit = _unit_of(panel, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{escape(_write(value))}</td>"
    colour = f' style="color:{colour_value(panel, value)}"' if name == "Value" and read_limits(panel) else ""
    return f'<td class="figure"{colour}>{escape(write_value(unit, value))}</td>'


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%H:%M:%S}"
    text = str(value)
    return f"{text[:8]}…" if len(text) == 32 and text.isalnum() else text


def _unit_of(panel: Panel, name: str) -> str:
    for override in panel["fieldConfig"].get("overrides") or ():
        if override["matcher"].get("options") == name:
            for entry in override["properties"]:
                if entry["id"] == "unit":
                    return str(entry["value"])
    return str(panel["fieldConfig"]["defaults"].get("unit", "")) if name == "Value" else ""


def render_waterfall(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the spans of a trace as bars over a common time, earliest first; services have their colours.

    A lease that outlasts everything else (blocks kept for a next turn) is cut: it would make points of the rest.
    """
    begins = [_nanoseconds(row["startTime"]) for row in rows]
    start = min(begins)
    ends = [
        begin + row["duration"] * 1e6
        for begin, row in zip(begins, rows, strict=True)
        if row["operationName"] != names.LEASE or len(rows) == 1
    ]
    whole = max(ends, default=start) - start or 1
    services = sorted({str(row["serviceName"]) for row in rows})
    lines = []
    for begin, row in sorted(zip(begins, rows, strict=True), key=lambda pair: pair[0]):
        service = str(row["serviceName"])
        left, width = (begin - start) / whole * 100, row["duration"] * 1e6 / whole * 100
        bar = f"left:{left:.2f}%;width:{max(width, 0.15):.2f}%;background:{colour_of(services.index(service))}"
        lines.append(
            f'<div class="span"><span class="who">{escape(service)} <b>{escape(str(row["operationName"]))}</b></span>'
            f'<span class="lane"><i style="{bar}"></i></span>'
            f'<span class="took">{escape(write_value("ms", row["duration"]))}</span></div>'
        )
    return f'<div class="scroll waterfall">{"".join(lines)}</div>'


def _nanoseconds(value: Any) -> float:
    """Return Unix nanoseconds of a time as chDB gives it."""
    return value.timestamp() * 1e9 if hasattr(value, "timestamp") else float(value)

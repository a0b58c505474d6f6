"""A board as one HTML file: Grafana's grid, titles, legends and limits, drawn from answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from analysis.report.page import POLICY, read_asset

from .charts import LEGEND_ROWS, make_chart, render_legend
from .read import Answer, Panel, Sources, read_panel
from .tables import render_number, render_table, render_waterfall

_HERE = Path(__file__).parent
# Grafana's grid: a row of 30 px and a gap of 8.
_ROW, _GAP = 30, 8
_TITLE, _LEGEND_LINE = 34, 19


def render_board(board: Mapping[str, Any], sources: Sources, bundle: str, subtitle: str) -> str:
    """Return the page. bundle: the chart library's script; subtitle: says what the data are."""
    charts: dict[str, Any] = {}
    panels = "\n".join(_render_panel(panel, sources, charts) for panel in board["panels"])
    specs = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    script = bundle.replace("</script", "<\\/script")
    chosen = ", ".join(
        f"{name}={value}" for name, value in sources.values.items() if value != ".*" and not name.startswith("__")
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY, quote=False)}">
<title>{escape(board["title"])} - preview</title>
<style>
{(_HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header><h1>{escape(board["title"])}</h1>
<p>{escape(board["description"])} <span class="faint">{escape(subtitle)} {escape(chosen)}</span></p></header>
<main>
{panels}
</main>
<script type="application/json" id="charts">{specs}</script>
<script>{script}</script>
<script>
{read_asset("page.js")}</script>
</body>
</html>
"""


def _render_panel(panel: Panel, sources: Sources, charts: dict[str, Any]) -> str:
    at = panel["gridPos"]
    place = f"grid-area:{at['y'] + 1}/{at['x'] + 1}/span {at['h']}/span {at['w']}"
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{place}">{title}</h2>'
    body = _render_body(panel, sources, charts)
    doc = escape(panel["description"])
    return f'<section style="{place}"><h3 title="{doc}">{title}</h3>{body}<p class="doc">{doc}</p></section>'


def _render_body(panel: Panel, sources: Sources, charts: dict[str, Any]) -> str:
    answer = read_panel(panel, sources)
    note = f'<p class="faint">{escape(answer.note)}</p>' if answer.note else ""
    if panel["type"] == "traces" and answer.rows:
        return render_waterfall(answer.rows)
    if answer.rows:
        return render_table(panel, answer) + note
    if not answer.series:
        return note or '<p class="empty">No data</p>'
    if panel["type"] == "stat":
        return render_number(panel, answer)
    return _render_chart(panel, answer, sources, charts)


def _render_chart(panel: Panel, answer: Answer, sources: Sources, charts: dict[str, Any]) -> str:
    name = f"chart-{panel['id']}"
    lines = min(len(answer.series), LEGEND_ROWS) + 1
    height = panel["gridPos"]["h"] * (_ROW + _GAP) - _GAP - 2 * _TITLE - lines * _LEGEND_LINE - 10
    charts[name] = make_chart(panel, answer, sources.span, max(height, 80))
    return f'<div class="chart" id="{name}"></div>{render_legend(panel, answer)}'

"""Sections as HTML. Everything that comes from a run is escaped here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from .model import Chart, Heading, Notes, Section, Table


class Figures:
    """Collects the charts of a page under ids, in order."""

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}

    def add(self, chart: Chart) -> str:
        """Add a chart and return its id."""
        name = f"chart-{len(self.specs) + 1}"
        self.specs[name] = chart.spec
        return name

    def encode(self) -> str:
        """Encode all charts as JSON that cannot end the script element it stands in."""
        return json.dumps(self.specs, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")


def render_section(name: str, section: Section, figures: Figures) -> str:
    """Render one section."""
    parts = "\n".join(_render_part(part, figures) for part in section.parts)
    head = f"<h2>{escape(section.title)}</h2>\n<p>{escape(section.lead)}</p>"
    return f'<section id="{escape(name)}">\n{head}\n{parts}\n</section>'


def _render_part(part: Chart | Table | str | Heading | Notes, figures: Figures) -> str:
    if isinstance(part, Chart):
        return _render_chart(part, figures)
    if isinstance(part, Table):
        return render_table(part)
    if isinstance(part, Heading):
        details = f'<p class="details">{escape(part.details)}</p>' if part.details else ""
        return f"<h3>{escape(part.text)}</h3>{details}"
    if isinstance(part, Notes):
        return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in part.lines)}</ul>'
    return f"<p>{escape(part)}</p>"


def _render_chart(chart: Chart, figures: Figures) -> str:
    name = figures.add(chart)
    kind = "chart stacked" if chart.is_stacked else "chart"
    figure = (
        f'<figure><div class="{kind}" id="{name}" role="img" aria-label="{escape(chart.description)}"></div>'
        f"<figcaption>{escape(chart.description)}</figcaption></figure>"
    )
    if chart.table is None:
        return figure
    return f"{figure}<details><summary>Figures as a table</summary>{render_table(chart.table)}</details>"


def render_table(table: Table) -> str:
    """Render a table that scrolls sideways on a narrow screen."""
    head = _render_row(table.head, "th", table.text_columns, "")
    rows = "".join(
        _render_row(row, "td", table.text_columns, table.marks.get(number, "")) for number, row in enumerate(table.rows)
    )
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _render_row(cells: Iterable[str], tag: str, text_columns: int, mark: str) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    inner = "".join(
        f"<{tag}{scope}{'' if place < text_columns else ' class=number'}>{escape(str(cell))}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr{f' class={mark}' if mark else ''}>{inner}</tr>"

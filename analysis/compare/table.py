"""Terminal tables of a comparison, and of published figures beside a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..render.table import add_title, make_table
from .comparison import Comparison
from .conditions import UNDECLARED
from .estimate import Estimate
from .published import NO_CLAIM, Beside
from .verdict import BETTER, NO_EVIDENCE, TOO_FEW, UNRESOLVED, WORSE, Verdict
from .words import NAME, list_conditions, list_notes, write_headline

STYLE = {BETTER: "bold green", WORSE: "bold red", NO_EVIDENCE: "dim", UNRESOLVED: "yellow", TOO_FEW: "dim"}


def render_comparison(comparison: Comparison) -> RenderableType:
    """Render a comparison, warnings about conditions first."""
    parts: list[RenderableType] = [Text(line, "bold red") for line in list_conditions(comparison)]
    parts += [Text(write_headline(comparison), "bold"), Text()]
    if comparison.differences:
        parts += [render_differences(comparison), Text()]
    parts += [render_verdicts(comparison), Text()]
    if comparison.quantiles:
        parts += [render_quantiles(comparison), Text()]
    if comparison.lengths:
        parts += [render_lengths(comparison), Text()]
    return Group(*parts, *(Text(f"- {note}") for note in list_notes(comparison)))


def render_differences(comparison: Comparison) -> RenderableType:
    """Render the conditions that differ."""
    table = make_table()
    for name in ("condition", comparison.a, comparison.b, "is"):
        table.add_column(name, overflow="fold")
    for one in comparison.differences:
        style = "red" if one.status == UNDECLARED else ""
        table.add_row(one.key, _word(one.a), _word(one.b), one.status, style=style)
    return add_title("Conditions that differ", table)


def render_verdicts(comparison: Comparison) -> RenderableType:
    """Render the verdict of every row; differences of segments and residual sum to TTFT's."""
    table = make_table()
    table.add_column("")
    for name in (comparison.a, comparison.b, "difference", "", "interval", "p", "n"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for verdict in comparison.verdicts:
        share = "" if verdict.relative is None else f"{verdict.relative:+.1%}"
        name = NAME.get(verdict.name, verdict.name)
        table.add_row(
            name, *_figures(verdict.estimate, share), f"{verdict.p_adjusted:.2g}", str(verdict.estimate.units),
            _word_verdict(verdict), style="bold" if verdict.name in NAME else "",
        )  # fmt: skip
    return add_title(f"Mean per request, ms: {comparison.b} less {comparison.a}", table)


def _word_verdict(verdict: Verdict) -> Text:
    text = Text(verdict.word, STYLE[verdict.word])
    if verdict.word == NO_EVIDENCE and verdict.detectable is not None:
        text.append(f" (would find {float(f'{verdict.detectable:.2g}'):g} ms)", "dim")
    if verdict.only_in:
        text.append(f" (only in {'first' if verdict.only_in == 'a' else 'second'})", "dim")
    return text


def render_quantiles(comparison: Comparison) -> RenderableType:
    """Render the differences of quantiles."""
    table = make_table()
    table.add_column("")
    for name in (comparison.a, comparison.b, "difference", "interval"):
        table.add_column(name, justify="right")
    for one in comparison.quantiles:
        name = f"{NAME[one.metric]} p{one.quantile * 100:.0f}"
        table.add_row(name, f"{one.a:.2f}", f"{one.b:.2f}", f"{one.b - one.a:+.2f}", _interval(one.low, one.high))
    return add_title("Quantiles, ms", table)


def render_lengths(comparison: Comparison) -> RenderableType:
    """Render TTFT by prompt length, or by stratum."""
    table = make_table()
    table.add_column("")
    for name in (comparison.a, comparison.b, "difference", "", "interval", "n"):
        table.add_column(name, justify="right")
    for one in comparison.lengths:
        found = one.estimate
        share = f"{found.difference / found.mean_a:+.1%}" if found.mean_a else ""
        table.add_row(one.name, *_figures(found, share), f"{found.requests[0]}/{found.requests[1]}")
    return add_title(f"Mean TTFT by {'prompt length' if comparison.matched.paired else 'stratum'}, ms", table)


def _figures(found: Estimate, share: str) -> tuple[str, ...]:
    if math.isnan(found.difference):
        return ("-", "-", "-", "", "")
    interval = _interval(found.low, found.high)
    return f"{found.mean_a:.2f}", f"{found.mean_b:.2f}", f"{found.difference:+.2f}", share, interval


def _interval(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{low:+.2f} .. {high:+.2f}"


def _word(value: Any) -> str:
    return "-" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def render_published(name: str, sets: Sequence[Beside]) -> RenderableType:
    """Render published figures beside a run: conditions first, then figures, and the disclaimer before both."""
    parts: list[RenderableType] = [Text(NO_CLAIM, "bold")]
    for one in sets:
        for title, rows in ((one.title, one.conditions), ("", one.figures)):
            table = make_table()
            for column in ("conditions" if title else "figures", "published", name):
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*row)
            parts += [Text(), add_title(title, table) if title else table]
        parts += [Text(f"- {remark}") for remark in one.remarks]
    return Group(*parts)

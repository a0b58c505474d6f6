"""Two runs compared: verdicts, the differences of the segments with their intervals, and both distributions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...compare.comparison import Comparison, compare_breakdowns
from ...compare.matching import RESIDUAL
from ...compare.verdict import NO_EVIDENCE, Verdict
from ...compare.words import NAME, list_notes, write_headline
from ...segments import SEGMENTS
from ..model import Chart, Heading, Notes, Report, RunData, Section, Table
from ..palette import (
    COLOUR_OF_RUN,
    COLOUR_OF_VERDICT,
    SHAPE_OF_VERDICT,
    axis_ms,
    colour_by,
    make_spec,
)

ORDER = 20

ROW_PX = 21
POINTS = 200


def compare_report(report: Report) -> Comparison | None:
    """Compare the two runs of a report, once; None with one run."""
    return _compare(*report.runs) if report.is_pair else None


@lru_cache(maxsize=1)
def _compare_identified(a: _Key, b: _Key) -> Comparison:
    return compare_breakdowns(a.run.breakdown, b.run.breakdown)


class _Key:
    """A run as a cache key: by identity, as frames cannot be hashed."""

    def __init__(self, run: RunData) -> None:
        self.run = run

    def __hash__(self) -> int:
        return id(self.run)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.run is self.run


def _compare(a: RunData, b: RunData) -> Comparison:
    return _compare_identified(_Key(a), _Key(b))


def build(report: Report) -> Section | None:
    """Build the section; None with one run."""
    comparison = compare_report(report)
    if comparison is None:
        return None
    parts: list[Any] = [
        Heading("Difference by segment", "Mean of the second run less the first, ms, with its interval."),
        draw_differences(comparison),
        Heading("Distribution of TTFT"),
        draw_distributions(report),
    ]
    if comparison.lengths:
        by = "prompt length" if comparison.matched.paired else "stratum"
        parts += [Heading(f"Mean TTFT by {by}"), _tabulate_lengths(comparison)]
    return Section("Comparison", write_headline(comparison), [*parts, Notes(list_notes(comparison))])


def draw_differences(comparison: Comparison) -> Chart:
    """Draw segments and residual as points with intervals; verdicts differ in colour and in shape."""
    shown = [v for v in comparison.verdicts if v.name in (*SEGMENTS, RESIDUAL) and np.isfinite(v.estimate.difference)]
    data = [
        {
            "segment": verdict.name, "ms": verdict.estimate.difference, "low": verdict.estimate.low,
            "high": verdict.estimate.high, "verdict": verdict.word,
        }
        for verdict in shown
    ]  # fmt: skip
    row = {"field": "segment", "type": "nominal", "sort": None, "axis": {"title": None}}
    words = [verdict.word for verdict in shown]
    colour = colour_by("verdict", COLOUR_OF_VERDICT, words)
    shape = colour_by("verdict", SHAPE_OF_VERDICT, words)
    tips = [{"field": name, **({"format": ",.3f"} if name not in ("segment", "verdict") else {})} for name in
            ("segment", "verdict", "ms", "low", "high")]  # fmt: skip
    spec = make_spec(
        data,
        height=ROW_PX * max(1, len(data)),
        encoding={"y": row, "color": colour, "tooltip": tips},
        layer=[
            {"mark": {"type": "rule", "strokeDash": [3, 3]}, "data": {"values": [{}]},
             "encoding": {"x": {"datum": 0}, "color": {"value": "#8C8C8C"}, "y": None, "tooltip": None}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"x": axis_ms("low", "difference, ms"), "x2": {"field": "high"}}},
            {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
             "encoding": {"x": {"field": "ms", "type": "quantitative"}, "shape": shape}},
        ],
    )  # fmt: skip
    return Chart(spec, "Difference of the means by segment with its interval.", tabulate_verdicts(comparison))


def tabulate_verdicts(comparison: Comparison) -> Table:
    """Tabulate all verdicts."""
    head = ("", comparison.a, comparison.b, "difference", "", "interval", "p", "n", "verdict")
    rows = [_list_cells(verdict) for verdict in comparison.verdicts]
    marks = {
        place: verdict.word for place, verdict in enumerate(comparison.verdicts) if verdict.word in ("better", "worse")
    }
    return Table(head, rows, marks=marks)


def _list_cells(verdict: Verdict) -> list[str]:
    found, name = verdict.estimate, NAME.get(verdict.name, verdict.name)
    word = verdict.word
    if word == NO_EVIDENCE and verdict.detectable is not None:
        word += f" (would find {float(f'{verdict.detectable:.2g}'):g} ms)"
    return [
        name, f"{found.mean_a:,.2f}", f"{found.mean_b:,.2f}", f"{found.difference:+,.2f}",
        "" if verdict.relative is None else f"{verdict.relative:+.1%}", f"{found.low:+,.2f} .. {found.high:+,.2f}",
        f"{verdict.p_adjusted:.2g}", str(found.units), word,
    ]  # fmt: skip


def _tabulate_lengths(comparison: Comparison) -> Table:
    rows = [
        [one.name, f"{one.estimate.mean_a:,.1f}", f"{one.estimate.mean_b:,.1f}", f"{one.estimate.difference:+,.1f}",
         f"{one.estimate.low:+,.1f} .. {one.estimate.high:+,.1f}", "/".join(map(str, one.estimate.requests))]
        for one in comparison.lengths
    ]  # fmt: skip
    return Table(("ms", comparison.a, comparison.b, "difference", "interval", "n"), rows)


def draw_distributions(report: Report) -> Chart:
    """Draw the share of requests whose first token came by a time, both runs."""
    data = []
    for run in report.runs:
        ttft = run.breakdown.budgets["ttft"].to_numpy() / 1e6
        shares = np.linspace(0, 1, min(POINTS, len(ttft) + 1))
        data += [
            {"run": run.name, "ms": round(float(value), 3), "share": round(float(share), 4)}
            for share, value in zip(shares, np.quantile(ttft, shares), strict=True)
        ]
    names = [run.name for run in report.runs]
    spec = make_spec(
        data,
        height=220,
        mark={"type": "line", "interpolate": "step-after", "strokeWidth": 2.5},
        encoding={
            "x": axis_ms("ms", "TTFT, ms"),
            "y": {
                "field": "share",
                "type": "quantitative",
                "axis": {"format": ".0%", "title": "requests", "tickCount": 5},
            },
            "color": {"field": "run", "type": "nominal", "scale": {"domain": names, "range": list(COLOUR_OF_RUN)}},
            "strokeDash": {"field": "run", "type": "nominal", "scale": {"domain": names, "range": [[1, 0], [7, 4]]}},
            "tooltip": [{"field": "run"}, {"field": "ms", "format": ",.1f"}, {"field": "share", "format": ".0%"}],
        },
    )
    return Chart(spec, "Share of requests whose first token came by this time.")

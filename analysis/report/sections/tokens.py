"""TPOT: where the time per token went, by batch size, and which hand-overs slowed requests that were decoding."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...interference import NOBODY
from ...render.tpot import MEANING
from ...render.tpot_json import summarize
from ...source import Session
from ...tpot import PARTS
from ...tpot_report import TpotReport, report_tpot
from ..model import Chart, Heading, Report, Section, Table
from ..palette import BAR_PX, axis_ms, make_spec

ORDER = 60

NS_PER_MS = 1e6
TOP = 5
COLOUR_OF_PART = {"execution": "#009E73", "connector": "#CC79A7", "gap": "#E69F00", "preemption": "#D55E00"}


def load(session: Session) -> TpotReport:
    """Load a run's TPOT report; KvlensError without step records."""
    return report_tpot(session)


def build(report: Report) -> Section | None:
    """Build the section; None without step records."""
    known = [(run.name, run.loaded["tokens"]) for run in report.runs if run.loaded.get("tokens") is not None]
    if not known:
        return None
    parts: list[Any] = [draw_parts(known), _explain()]
    for name, tokens in known:
        parts += _show_interference(name if report.is_pair else "", tokens)
    lead = " ".join(_conclude(name, tokens) for name, tokens in known)
    return Section("TPOT and interference", lead, parts)


def _conclude(name: str, tokens: TpotReport) -> str:
    whole, parts = summarize(tokens)["tpot_ms"], average(tokens)
    total = sum(parts.values()) or 1.0
    return (
        f"{name}: TPOT {whole['p50']:.1f} ms at p50 and {whole['p99']:.1f} ms at p99;"
        f" {parts['connector'] / total:.1%} of it is connector work on the engine's threads."
    )


def average(tokens: TpotReport) -> dict[str, float]:
    """Mean per token of each part over all tokens, ms."""
    rows = tokens.requests
    weight = max(1, int(rows["intervals"].sum()))
    return {name: float((rows[f"{name}_ns"] * rows["intervals"]).sum()) / weight / NS_PER_MS for name in PARTS}


def draw_parts(known: list[tuple[str, TpotReport]]) -> Chart:
    """Draw the mean TPOT of each run in its parts."""
    data = [
        {"run": name, "part": part, "ms": round(value, 5), "order": place}
        for name, tokens in known
        for place, (part, value) in enumerate(average(tokens).items())
        if value > 0
    ]
    present = [part for part in COLOUR_OF_PART if any(entry["part"] == part for entry in data)]
    spec = make_spec(
        data,
        height=BAR_PX * 1.4 * len(known),
        mark={"type": "bar"},
        encoding={
            "y": {"field": "run", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": axis_ms("ms", "mean ms per token", stack="zero"),
            "color": {
                "field": "part", "type": "nominal",
                "scale": {"domain": present, "range": [COLOUR_OF_PART[part] for part in present]},
            },
            "order": {"field": "order"},
            "tooltip": [{"field": "run"}, {"field": "part"}, {"field": "ms", "format": ",.3f"}],
        },
    )  # fmt: skip
    rows = [[name, *(f"{value:.3f}" for value in average(tokens).values())] for name, tokens in known]
    return Chart(
        spec, "Mean time per output token by part, ms.", Table(("ms per token", *PARTS), rows), is_stacked=True
    )


def _explain() -> Table:
    return Table(("part", "meaning"), [[name, MEANING[name]] for name in PARTS], text_columns=2)


def _show_interference(name: str, tokens: TpotReport) -> list[Any]:
    cost = tokens.interference
    prefix = f"{name}: " if name else ""
    if cost is None:
        return []
    parts: list[Any] = [
        Heading(
            f"{prefix}cost of hand-overs to requests that were decoding",
            f"{cost['delay_ms']:,.1f} ms summed over all delayed requests, {cost['slowed_steps']:,} of"
            f" {cost['decode_steps']:,} decode steps slowed, {cost['delay_per_hand_over_ms']:,.2f} ms per hand-over.",
        )
    ]
    worst = tokens.culprits.filter(pl.col("culprit") != NOBODY, pl.col("delay_ns") > 0).head(TOP)
    if not worst.is_empty():
        rows = [
            [row["culprit"], row["direction"], f"{row['victims']:,}", f"{row['delay_ns'] / NS_PER_MS:,.2f}",
             f"{row['cost_ns'] / NS_PER_MS:,.2f}"]
            for row in worst.iter_rows(named=True)
        ]  # fmt: skip
        head = ("hand-over of request", "direction", "victims", "delay, summed ms", "its own time ms")
        parts.append(Table(head, rows, text_columns=2))
    return parts

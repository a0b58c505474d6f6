"""The clocks of the run's hosts: how far they are off, how well that is known, and what contradicted it."""

from __future__ import annotations

from typing import Any

from ...render.notes import note_clocks
from ..model import Chart, Heading, Notes, Report, Section, Table
from ..palette import BAR_PX, COLOUR_OF_RUN, axis_ms, make_spec

ORDER = 92


def build(report: Report) -> Section | None:
    """Build the section; a run of one boot has none."""
    found = [(run.name, run.breakdown.summary.get("clocks")) for run in report.runs]
    parts: list[Heading | Chart | Table | Notes] = []
    for name, clocks in found:
        if clocks is None:
            continue
        parts += [*([Heading(name)] if report.is_pair else []), draw_widths(clocks), Notes(note_clocks(clocks)[1:])]
    if not parts:
        return None
    lead = " ".join(_say(name if report.is_pair else "", clocks) for name, clocks in found if clocks is not None)
    return Section("Clocks", lead, parts)


def _say(name: str, clocks: dict[str, Any]) -> str:
    width = clocks["width_ms"]
    known = (
        f"two of them are known within {width['p50']:.2f} ms (median width)" if width else "no two of them are related"
    )
    return (
        f"{name + ': ' if name else ''}{len(clocks['clocks'])} clocks, put on that of {clocks['reference']} by"
        f" {clocks['messages_used']:,} messages, each received after it was sent; {known}."
        " Segments between two clocks carry this uncertainty, segments inside one do not."
    )


def draw_widths(clocks: dict[str, Any]) -> Chart:
    """Draw how well each pair is known, the widest first; those without a number are in the table only."""
    pairs = clocks["widest_pairs"]
    data = [
        {"pair": f"{pair['first']} - {pair['second']}", "width": pair["width_ms"], "offset": pair["offset_ms"]}
        for pair in pairs
        if pair["width_ms"] is not None
    ]
    spec = make_spec(
        data,
        height=BAR_PX * max(len(data), 1),
        mark={"type": "bar", "color": COLOUR_OF_RUN[0]},
        encoding={
            "y": {"field": "pair", "type": "nominal", "sort": None, "axis": {"title": None}},
            "x": axis_ms("width", "width of the interval, ms"),
            "tooltip": [
                {"field": "pair"}, {"field": "width", "format": ",.3f", "title": "width ms"},
                {"field": "offset", "format": "+,.3f", "title": "offset ms"},
            ],
        },
    )  # fmt: skip
    head = ("first", "second", "through", "offset ms", "width ms", "messages", "impossible", "jumps")
    rows = [
        [
            pair["first"], pair["second"], pair["why_unknown"] or ", ".join(pair["route"]) or "directly",
            _number(pair["offset_ms"]), _number(pair["width_ms"]), f"{pair['messages']:,}", str(pair["impossible"]),
            str(pair["jumps"]),
        ]
        for pair in pairs
    ]  # fmt: skip
    text = f"How well the {len(data)} widest of {clocks['pairs']:,} pairs of clocks are known."
    return Chart(spec, text, Table(head, rows, text_columns=3))


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.3f}"

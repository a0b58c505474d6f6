"""What first tokens waited for: what makes the slowest differ from the middle, when it happened, drag and slack."""

from __future__ import annotations

from typing import Any

import polars as pl

from ...critical.bands import Bands, split_bands
from ...critical.path import find_paths
from ...critical.summary import summarize_paths
from ...render.waterfall import list_bars
from ...segments import CLASS_OF_BAR, CLASSES
from ..model import Chart, Heading, Report, Section, Table
from ..palette import BAR_PX, COLOUR_OF_CLASS, axis_ms, colour_by, make_spec

ORDER = 35

SAMPLE = 300
"""Requests of a band that its lanes are averaged over: more do not move a mean that is drawn in pixels."""
LANE_OF = {
    "route": "router", "handoff_dispatch": "router", "delivery": "router", "prefill_ingress": "router",
    "prefill_queue": "prefill engine", "prefill_compute": "prefill engine", "readback": "prefill engine",
    "decode_admission": "decode engine", "decode_queue": "decode engine", "first_decode": "decode engine",
    "completion_lag": "decode engine",
}  # fmt: skip
"""Everything else lies between the two engines."""
BETWEEN = "between engines"
LANES = ("router", "prefill engine", BETWEEN, "decode engine")
VISIBLE = 0.005
"""A bar below this share of the whole difference is less than a pixel or two: it is in the table only."""
NS_PER_MS = 1e6


def build(report: Report) -> Section | None:
    """Build the section."""
    parts: list[Heading | Chart | Table | str] = []
    leads = []
    for run in report.runs:
        paths = find_paths(run.breakdown.budgets)
        for mode, summary in summarize_paths(paths).items():
            several = paths["mode"].n_unique() > 1
            name = ", ".join([*([run.name] if report.is_pair else []), *([mode] if several else [])])
            bands = split_bands(paths.filter(pl.col("mode") == ("" if mode == "unknown" else mode)))
            if bands is not None:
                leads.append(_say(summary, name))
                parts += _show_bands(summary, bands, name)
            parts += [Heading(_title("Drag and slack", name), DRAG), _tabulate(summary)]
    if not parts:
        return None
    few = "Too few requests to tell slow ones from middle ones: 20 of one mode are needed."
    return Section("What first tokens waited for", " ".join(leads) or few, parts)


DRAG = (
    "Drag: how much sooner the first token would have come had the segment taken no time. Slack: how much longer it"
    " could have taken. In push two branches run side by side, and only the later one has drag. Mean ms."
)


def _title(text: str, name: str) -> str:
    return f"{text}: {name}" if name else text


def _say(summary: dict[str, Any], name: str) -> str:
    """Say what explains most of the difference, and only what is resolved."""
    sure = [row for row in summary["differences"] if row["why_unresolved"] is None and row["difference_ms"] > 0][:2]
    total = sum(row["difference_ms"] for row in summary["differences"])
    head = f"{name}: the" if name else "The"
    text = f"{head} {summary['top']} of requests take {total:,.0f} ms longer than those from {summary['middle']}"
    if not sure:
        return f"{text}; no segment's part in it is resolved."
    causes = " and ".join(f"{row['share']:.0%} {row['segment']}" for row in sure)
    return f"{text}, of which {causes}."


def _show_bands(summary: dict[str, Any], bands: Bands, name: str) -> list[Heading | Chart | Table | str]:
    counts = {band["band"]: band["requests"] for band in summary["bands"]}
    details = ", ".join(f"{side} (n={counts[side]:,})" for side in (summary["top"], summary["middle"]))
    return [
        Heading(_title("What makes the slowest differ", name), f"{details}; lines are 95 % intervals."),
        draw_differences(summary),
        Heading(
            _title("When it happened", name), "Mean begin and end of each segment; pale: beside the critical path."
        ),
        draw_lanes(bands),
    ]


def draw_differences(summary: dict[str, Any]) -> Chart:
    """Draw the difference of each segment with its interval, the largest first; unresolved ones pale."""
    total = abs(sum(row["difference_ms"] for row in summary["differences"]))
    shown = [row for row in summary["differences"] if abs(row["difference_ms"]) >= VISIBLE * total]
    rows = shown or summary["differences"][:1]
    data = [
        {
            "segment": row["segment"], "class": row["class"], "ms": row["difference_ms"], "low": row["low_ms"],
            "high": row["high_ms"], "share": row["share"], "middle": row["middle_ms"], "top": row["top_ms"],
            "sure": "yes" if row["why_unresolved"] is None else f"no: {row['why_unresolved']}",
        }
        for row in rows
    ]  # fmt: skip
    y = {"field": "segment", "type": "nominal", "sort": None, "axis": {"title": None}}
    tooltip = [
        {"field": "segment"}, {"field": "ms", "format": "+,.2f", "title": "difference ms"},
        {"field": "low", "format": "+,.2f"}, {"field": "high", "format": "+,.2f"},
        {"field": "share", "format": ".1%", "title": "of the difference"},
        {"field": "middle", "format": ",.2f"}, {"field": "top", "format": ",.2f"},
        {"field": "sure", "title": "resolved"},
    ]  # fmt: skip
    opacity = {"condition": {"test": "datum.sure == 'yes'", "value": 1}, "value": 0.35}
    bar = {
        "mark": {"type": "bar"},
        "encoding": {
            "y": y,
            "x": axis_ms("ms", "difference of the means, ms"),
            "color": colour_by("class", COLOUR_OF_CLASS, [row["class"] for row in data]),
            "opacity": opacity,
            "tooltip": tooltip,
        },
    }
    rule = {
        "mark": {"type": "rule", "strokeWidth": 2, "color": "#777777"},
        "encoding": {"y": y, "x": axis_ms("low", "difference of the means, ms"), "x2": {"field": "high"}},
    }
    spec = make_spec(data, height=(BAR_PX + 4) * max(len(data), 1), layer=[bar, rule])
    return Chart(
        spec,
        f"Mean ms by which each segment is longer in the {summary['top']} of requests than in {summary['middle']}.",
        _tabulate_differences(summary),
    )


def _tabulate_differences(summary: dict[str, Any]) -> Table:
    head = ("segment", "unresolved", summary["middle"], summary["top"], "difference", "95 %", "share", "95 %")
    rows = [
        [
            row["segment"], row["why_unresolved"] or "", f"{row['middle_ms']:,.2f}", f"{row['top_ms']:,.2f}",
            f"{row['difference_ms']:+,.2f}", f"{row['low_ms']:+,.2f} to {row['high_ms']:+,.2f}", f"{row['share']:.1%}",
            f"{row['share_low']:.0%} to {row['share_high']:.0%}",
        ]
        for row in summary["differences"]
    ]  # fmt: skip
    return Table(head, rows, text_columns=2)


def draw_lanes(bands: Bands) -> Chart:
    """Draw the mean request of the middle and of the top band: one lane per place of work."""
    data = [entry for name in (bands.middle, bands.top) for entry in list_lanes(name, bands.find(name))]
    order = [f"{name}: {lane}" for name in (bands.middle, bands.top) for lane in LANES]
    used = [lane for lane in order if any(entry["lane"] == lane for entry in data)]
    spec = make_spec(
        data,
        height=BAR_PX * len(used),
        mark={"type": "bar", "height": {"band": 0.8}},
        encoding={
            "y": {"field": "lane", "type": "nominal", "sort": used, "axis": {"title": None}},
            "x": axis_ms("begin", "ms since the client sent it"),
            "x2": {"field": "end"},
            "color": {
                **colour_by("class", COLOUR_OF_CLASS, [entry["class"] for entry in data]),
                "legend": {"columns": 3},  # the lanes' names leave little room on a phone
            },
            "opacity": {"condition": {"test": "datum.hidden", "value": 0.35}, "value": 1},
            "tooltip": [
                {"field": "segment"}, {"field": "lane"}, {"field": "ms", "format": ",.2f"},
                {"field": "begin", "format": ",.2f"}, {"field": "requests", "title": "requests that have it"},
            ],
        },
    )  # fmt: skip
    head = ("lane", "segment", "begin", "end", "mean ms")
    rows = [
        [entry["lane"], entry["segment"], *(f"{entry[name]:,.2f}" for name in ("begin", "end", "ms"))] for entry in data
    ]
    text = f"When the segments happen in the mean request: {bands.middle} above, {bands.top} below."
    return Chart(spec, text, Table(head, rows, text_columns=2))


def list_lanes(band: str, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """List the mean bars of a band, in the order of their begin."""
    sample = rows.sample(SAMPLE, seed=0) if rows.height > SAMPLE else rows
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for row in sample.iter_rows(named=True):
        for segment, begin, end, _, hidden in list_bars(row):
            found.setdefault((segment, hidden), []).append((begin / NS_PER_MS, end / NS_PER_MS))
    entries = []
    for (segment, hidden), bars in found.items():
        first, last = (sum(bar[side] for bar in bars) / len(bars) for side in (0, 1))
        kind = CLASS_OF_BAR[segment]
        if len(bars) * 10 < sample.height or kind not in CLASSES:
            continue  # a bar of few requests has no place in the mean of all
        entries.append({
            "lane": f"{band}: {LANE_OF.get(segment, BETWEEN)}", "segment": segment + (" (hidden)" if hidden else ""),
            "class": kind, "begin": round(first, 4), "end": round(last, 4), "ms": round(last - first, 4),
            "hidden": hidden, "requests": len(bars),
        })  # fmt: skip
    return sorted(entries, key=lambda entry: (entry["begin"], entry["end"]))


def _tabulate(summary: dict[str, Any]) -> Table:
    rows = [
        [
            row["segment"],
            row["class"],
            f"{row['on_path']:.0%}",
            *(f"{row[f'{name}_ms']:,.2f}" for name in ("len", "drag", "slack")),
        ]
        for row in summary["segments"]
    ]
    return Table(("segment", "class", "on the path", "length", "drag", "slack"), rows, text_columns=2)

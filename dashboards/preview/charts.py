"""A graph panel as a Vega-Lite chart and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..prometheus import Series, Span
from .read import Answer, Panel
from .units import Scale, choose_scale, write_value

# Okabe and Ito's, and four more that differ from them in lightness.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6B6E75", "#8A7B00", "#6F4BB8", "#5C3317",
)  # fmt: skip
LIMIT_COLOURS = {"green": "#00805a", "yellow": "#b58900", "red": "#c4281c"}
LEGEND_ROWS = 5
_GAP_STEPS = 2.5
"""Points further apart than this many steps are not joined."""


def colour_of(index: int) -> str:
    """Return the colour of the n-th series."""
    return COLOURS[index % len(COLOURS)]


def colour_series(panel: Panel, names: Sequence[str]) -> list[str]:
    """Return a colour per name: the panel's own where it fixes one."""
    fixed = {
        override["matcher"].get("options"): entry["value"]["fixedColor"]
        for override in panel["fieldConfig"].get("overrides") or ()
        for entry in override["properties"]
        if entry["id"] == "color"
    }
    return [str(fixed.get(name, colour_of(index))) for index, name in enumerate(names)]


def read_limits(panel: Panel) -> list[tuple[float, str]]:
    """Return a panel's limits: from which value on which colour."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    return [(step["value"], step["color"]) for step in steps if step["value"] is not None]


def make_chart(panel: Panel, answer: Answer, span: Span, height: int) -> Mapping[str, Any]:
    """Return the chart of a graph panel, `height` pixels high."""
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    scale = choose_scale(str(defaults.get("unit", "")), (v for _, s in answer.series for _, v in s.points))
    names = [name for name, _ in answer.series]
    colour = {
        "field": "s",
        "type": "nominal",
        "scale": {"domain": names, "range": colour_series(panel, names)},
        "legend": None,
    }
    encoding: dict[str, Any] = {
        "x": _time_axis(span),
        "y": {"field": "v", "type": "quantitative", "axis": _value_axis(scale), "scale": {"zero": True, "nice": True},
              "stack": "zero" if stacked else None},
        "color": colour,
    }  # fmt: skip
    mark = {"type": "area", "opacity": 0.7, "line": False} if stacked else {"type": "line", "strokeWidth": 1.4}
    layers: list[Any] = [{"data": {"values": list(_points(answer.series, scale, span))}, "mark": mark,
                          "encoding": encoding}]  # fmt: skip
    if answer.exemplars:
        layers.append(_dots(answer.exemplars, scale, span))
    layers += [_rule(value * scale.factor, colour) for value, colour in _limits_near(panel, answer)]
    return {
        "layer": layers, "width": "container", "height": height, "background": "transparent",
        "autosize": {"type": "fit", "contains": "padding"},
        "config": {"view": {"stroke": None}, "font": "system-ui, sans-serif",
                   "axis": {"labelFontSize": 11, "domain": False, "ticks": False, "gridColor": "#e4e6ea"}},
    }  # fmt: skip


def _time_axis(span: Span) -> dict[str, Any]:
    pattern = "%H:%M" if span.end - span.start >= 600 else "%H:%M:%S"
    axis = {"title": None, "format": pattern, "tickCount": 6, "grid": False, "labelOverlap": "greedy",
            "labelSeparation": 12, "labelPadding": 6, "labelFlush": True}  # fmt: skip
    domain = {"domain": [span.start * 1000, span.end * 1000]}
    return {"field": "t", "type": "temporal", "axis": axis, "scale": {**domain, "type": "utc"}}


def _value_axis(scale: Scale) -> dict[str, Any]:
    return {"title": None, "tickCount": 5, "labelExpr": f"format(datum.value, '~g') + '{scale.suffix}'"}


def _points(series: Sequence[tuple[str, Series]], scale: Scale, span: Span) -> Any:
    for name, one in series:
        last: float | None = None
        for at, value in one.points:
            if last is not None and at - last > _GAP_STEPS * max(span.step, 1.0):
                yield {"t": round((last + at) * 500), "v": None, "s": name}
            yield {"t": round(at * 1000), "v": float(f"{value * scale.factor:.4g}"), "s": name}
            last = at


def _dots(exemplars: Sequence[Series], scale: Scale, span: Span) -> dict[str, Any]:
    values = [
        {"t": round(at * 1000), "v": float(f"{value * scale.factor:.4g}"), "trace": one.labels.get("trace_id", "")}
        for one in exemplars
        for at, value in one.points
        if span.start <= at <= span.end
    ]
    return {
        "data": {"values": values[:400]},
        "mark": {"type": "point", "shape": "diamond", "size": 22, "filled": True, "color": "#30343a", "opacity": 0.55},
        "encoding": {
            "x": _time_axis(span), "y": {"field": "v", "type": "quantitative", "axis": _value_axis(scale)},
            "tooltip": {"field": "trace", "type": "nominal"},
        },
    }  # fmt: skip


def _limits_near(panel: Panel, answer: Answer) -> list[tuple[float, str]]:
    """Return the limits that lie within three times what is shown: a far one would flatten the lines."""
    largest = max((value for _, one in answer.series for _, value in one.points), default=0.0)
    return [(value, colour) for value, colour in read_limits(panel) if largest and value <= 3 * largest]


def _rule(value: float, colour: str) -> dict[str, Any]:
    return {
        "data": {"values": [{"limit": value}]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "color": LIMIT_COLOURS.get(colour, colour)},
        "encoding": {"y": {"field": "limit", "type": "quantitative"}},
    }


def render_legend(panel: Panel, answer: Answer) -> str:
    """Return the legend as Grafana's table of mean, max and last."""
    unit = str(panel["fieldConfig"]["defaults"].get("unit", ""))
    rows = []
    colours = colour_series(panel, [name for name, _ in answer.series])
    order = sorted(zip(answer.series, colours, strict=True), key=lambda pair: -pair[0][1].points[-1][1])
    for (name, one), colour in order:
        values = [value for _, value in one.points]
        cells = (sum(values) / len(values), max(values), values[-1])
        figures = "".join(f"<td>{escape(write_value(unit, value))}</td>" for value in cells)
        rows.append(f'<tr><th><i style="background:{escape(colour)}"></i>{escape(name)}</th>{figures}</tr>')
    limits = ", ".join(
        f"{escape(colour)} from {escape(write_value(unit, value))}" for value, colour in read_limits(panel)
    )
    foot = f'<tr class="limit"><th>limit: {limits}</th><td></td><td></td><td></td></tr>' if limits else ""
    head = "<tr><th></th><td>mean</td><td>max</td><td>last</td></tr>"
    return f'<div class="legend"><table>{head}{"".join(rows)}{foot}</table></div>'

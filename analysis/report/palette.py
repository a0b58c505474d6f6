"""Colours that colour-blind readers tell apart, on white and on black (Okabe and Ito 2008); parts of all charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLOUR_OF_CLASS = {
    "compute": "#009E73",
    "queue": "#E69F00",
    "coordination": "#CC79A7",
    "transfer": "#56B4E9",
    "frontend": "#0072B2",
    "routing": "#D55E00",
    "residual": "#8C8C8C",
}
COLOUR_OF_RUN = ("#0072B2", "#E69F00")
COLOUR_OF_VERDICT = {
    "better": "#009E73",
    "worse": "#D55E00",
    "unresolved": "#CC79A7",
    "no evidence": "#8C8C8C",
    "too few": "#8C8C8C",
}
SHAPE_OF_VERDICT = {
    "better": "triangle-left",
    "worse": "triangle-right",
    "unresolved": "diamond",
    "no evidence": "circle",
    "too few": "circle",
}

BAR_PX = 22

Spec = dict[str, Any]


def make_spec(data: Sequence[Mapping[str, Any]], **parts: Any) -> Spec:
    """Make a spec as wide as its container; text and lines take their colours from the page's style."""
    return {
        "data": {"values": list(data)},
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        "config": {
            "view": {"stroke": None},
            "font": "system-ui, sans-serif",
            "axis": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 200, "domain": False, "ticks": False},
            "legend": {"orient": "top", "title": None, "labelFontSize": 12, "columns": 4},
        },
        **parts,
    }


def colour_by(field: str, colours: Mapping[str, str], present: Sequence[str]) -> Spec:
    """Colour by a field, with a legend of what is present only, in the palette's order."""
    names = [name for name in colours if name in present]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": names, "range": [colours[name] for name in names]},
    }


def axis_ms(field: str, title: str, **more: Any) -> Spec:
    """Make an axis of milliseconds with few ticks, so that it fits a phone."""
    return {"field": field, "type": "quantitative", "axis": {"title": title, "tickCount": 5}, **more}

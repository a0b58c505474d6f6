"""Terminal tables of `kvlens what-if`; times in ms."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..render.table import add_title, make_table
from .document import VIEWS, render_document
from .predict import KINDS, Prediction

POINTS = ("p50", "p90", "p99", "mean")
MEANING = {
    "recorded": "what the run measured",
    "replayed": "the recorded mode through the model",
    "simulated": "the other arrangement through the model",
    "predicted": "recorded + simulated - replayed, per request",
}


def render_table(prediction: Prediction) -> RenderableType:
    """Render one prediction."""
    document = render_document(prediction)
    title = f"{prediction.run}: {prediction.own.describe()} -> {prediction.other.describe()}"
    left_out = f", {document['left_out']} left out (not seen whole, or beyond --limit)" if document["left_out"] else ""
    parts: list[RenderableType] = [
        Text(title, "bold"), Text(f"{document['requests']} requests, {document['replays']} replays{left_out}"), Text(),
    ]  # fmt: skip
    for kind in KINDS:
        if document[f"{kind}_ms"]["recorded"]:
            parts += [render_kind(document, kind), word_error(document, kind), Text()]
    parts += [render_groups(document), Text(), render_loads(document), Text(), render_segments(document), Text()]
    parts += [render_parameters(document), Text(), *(Text(f"Assumed: {note}.") for note in document["assumptions"])]
    return Group(*parts)


def render_kind(document: dict[str, Any], kind: str) -> RenderableType:
    """Render TTFT or TPOT: recorded, replayed, simulated, predicted."""
    table = make_table()
    for name in ("", *POINTS, "meaning"):
        table.add_column(name, justify="left" if name in ("", "meaning") else "right")
    values = document[f"{kind}_ms"]
    for view in VIEWS:
        style = "bold" if view == "predicted" else ""
        table.add_row(view, *(f"{values[view][name]:.1f}" for name in POINTS), MEANING[view], style=style)
    ranges = values["predicted_range"]
    cells = [f"{ranges[name][0]:.0f}..{ranges[name][1]:.0f}" if name in ranges else "" for name in POINTS]
    table.add_row("", *cells, "over single replays", style="dim")
    return add_title(f"{kind.upper()} (ms)", table)


def word_error(document: dict[str, Any], kind: str) -> Text:
    """Word how far the replay of the recorded mode is from the record: it bounds the trust in the prediction."""
    errors = document["replay_error"][kind]
    words = ", ".join(f"{name} {value:+.1%}" for name, value in errors.items())
    return Text(f"replay error of the recorded mode: {words}")


def render_groups(document: dict[str, Any]) -> RenderableType:
    """Render who gains and who loses TTFT."""
    table = make_table()
    figures = ("p50 recorded", "predicted", "p90 recorded", "predicted")
    for name in ("requests", "count", *figures, "gain > 5 %", "lose > 5 %"):
        table.add_column(name, justify="left" if name == "requests" else "right")
    for key, word in (("by_prompt", "prompt {} tokens"), ("by_load", "{} in flight at arrival")):
        for entry in document[key]:
            before, after = entry["recorded_ms"], entry["predicted_ms"]
            cells = [f"{side[name]:.0f}" for name in ("p50", "p90") for side in (before, after)]
            shares = [f"{entry['gain']:.0%}", f"{entry['lose']:.0%}"]
            table.add_row(word.format(entry["group"]), str(entry["requests"]), *cells, *shares)
        table.add_section()
    return add_title("Who gains, who loses: TTFT (ms)", table)


def render_loads(document: dict[str, Any]) -> RenderableType:
    """Render where a queue grows and where blocks are held."""
    table = make_table()
    for name in ("engine", "waiting, mean", "other", "max", "other", "held blocks, mean", "other", "max", "other"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for entry in document["engines"]:
        cells = []
        for name, digits in (("queue_mean", 2), ("queue_max", 0), ("blocks_mean", 1), ("blocks_max", 0)):
            for side in ("recorded", "predicted"):
                cells.append(f"{entry[side][name]:.{digits}f}" if entry[side] else "-")
        table.add_row(entry["engine"], *cells)
    return add_title("Where a queue grows: the recorded mode and the other arrangement, both simulated", table)


def render_segments(document: dict[str, Any]) -> RenderableType:
    """Render the mean of each segment."""
    table = make_table()
    views = ("recorded", "replayed", "simulated")
    for name in ("segment", *views):
        table.add_column(name, justify="left" if name == "segment" else "right")
    for name, entry in document["segments_ms"].items():
        table.add_row(name, *(f"{entry[view]:.1f}" if view in entry else "-" for view in views))
    return add_title("Segments (mean ms)", table)


def render_parameters(document: dict[str, Any]) -> RenderableType:
    """Render the parameters and where each comes from."""
    table = make_table()
    for name in ("part", "value", "from"):
        table.add_column(name, overflow="fold")
    for entry in document["parameters"]:
        table.add_row(entry["name"], entry["value"], entry["origin"])
    return add_title("The model's parameters", table)

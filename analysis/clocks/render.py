"""The table of `kvlens clocks`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..render.notes import note_clocks
from ..render.table import add_title, make_table
from .describe import rank_pairs


def render_clocks(run: str, summary: dict[str, Any] | None, pairs: list[dict[str, Any]], limit: int) -> RenderableType:
    """Render the pairs: those without a number first, then the widest; notes below."""
    if summary is None:
        return Text(f"All processes of {run} are of one boot: they share one clock and are aligned exactly.")
    table = make_table()
    for name, side in COLUMNS.items():
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    ordered = rank_pairs(pairs)
    for pair in ordered[:limit]:
        table.add_row(*_list_cells(pair))
    rest = [Text(f"{len(ordered) - limit} more pairs: --top {len(ordered)}")] if len(ordered) > limit else []
    legend = Text("offset: the second clock less the first, in the middle of the run; width: of its interval")
    title = f"Clocks of {run}: {len(summary['clocks'])} boots, {len(pairs)} pairs"
    return Group(add_title(title, table), *rest, legend, *(Text(note) for note in note_clocks(summary)))


COLUMNS = {
    "first": "left", "second": "left", "offset ms": "right", "width ms": "right", "drift ppm": "right",
    "messages": "right", "impossible": "right", "jumps": "right", "through": "left",
}  # fmt: skip


def _list_cells(pair: dict[str, Any]) -> list[str]:
    drift = pair["drift_ppm"]
    return [
        pair["first"],
        pair["second"],
        "unknown" if pair["offset_ms"] is None else f"{pair['offset_ms']:,.3f}",
        "-" if pair["width_ms"] is None else f"{pair['width_ms']:,.3f}",
        f"{drift[0]:+.1f} to {drift[1]:+.1f}" if drift else "-",
        f"{pair['messages_there']} + {pair['messages_back']}",
        str(pair["impossible"]),
        str(pair["jumps"]),
        pair["why_unknown"] or ", ".join(pair["route"]) or "directly",
    ]

"""The interference section of `kvlens breakdown`: what hand-overs cost the requests that were already decoding."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def render_interference(mode: str, summary: dict[str, Any]) -> RenderableType:
    """Render the interference summary of one run (interference.summarize_interference)."""
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    rows = {
        "delay of all victims, summed": f"{summary['delay_ms']:.1f}",
        "  by posts on the engine's thread": f"{summary['post_delay_ms']:.1f}",
        "  by polls": f"{summary['poll_delay_ms']:.1f}",
        "per hand-over": f"{summary['delay_per_hand_over_ms']:.2f}",
        "hand-overs that delayed somebody": f"{summary['culprits']} of {summary['hand_overs']}",
        "per generated token": f"{summary['delay_ms'] / max(1, summary['tokens']):.3f} ({summary['tokens']} tokens)",
        "decode steps slowed": f"{summary['slowed_steps']} of {summary['decode_steps']}",
        "connector time of no transfer": f"{summary['unattributed_delay_ms']:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    for entry in summary["submissions"]:
        where = f"{entry['direction']} posted on {entry['engine']}, {entry['thread']} ({entry['place']})"
        table.add_row(where, f"{entry['post_ms']:.1f} in {entry['posts']} posts")
    return Group(Text(f"Cost of hand-overs to continuing requests, {mode} (ms)", "bold italic"), table)

"""The tables of `kvlens critical-path`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..render.table import STYLE_OF_CLASS, add_title, make_table

WHY = {"chance": "chance", "uncertainty": "uncertain", None: ""}


def render_paths(run: str, modes: dict[str, Any]) -> RenderableType:
    """Render every mode: drag and slack, then what makes the slowest differ."""
    parts: list[RenderableType] = []
    for mode, summary in modes.items():
        parts += [_render_segments(run, mode, summary), Text(), _render_differences(mode, summary), Text()]
    legend = (
        "drag: how much sooner the first token would have come without the segment; slack: how much longer it could"
        " have taken. A request's own work is replayed, not its neighbours'."
    )
    return Group(*parts, Text(legend))


def _render_segments(run: str, mode: str, summary: dict[str, Any]) -> RenderableType:
    table = make_table()
    for name in ("segment", "class"):
        table.add_column(name)
    for name in ("on path", "length", "drag", "slack"):
        table.add_column(name, justify="right")
    for row in summary["segments"]:
        figures = (f"{row[f'{name}_ms']:,.1f}" for name in ("len", "drag", "slack"))
        table.add_row(
            row["segment"], Text(row["class"], STYLE_OF_CLASS[row["class"]]), f"{row['on_path']:.0%}", *figures
        )
    return add_title(f"Critical path, {run}, {mode}: {summary['requests']} requests (mean ms)", table)


def _render_differences(mode: str, summary: dict[str, Any]) -> RenderableType:
    if not summary["differences"]:
        return Text(
            f"{summary['requests']} requests in {mode} are too few to tell slow ones from middle ones (20 needed)."
        )
    table = make_table()
    table.add_column("segment")
    for name in (summary["middle"], summary["top"], "difference", "95 %", "share", "95 %"):
        table.add_column(name, justify="right")
    table.add_column("unresolved")
    for row in summary["differences"]:
        table.add_row(
            row["segment"], f"{row['middle_ms']:,.1f}", f"{row['top_ms']:,.1f}", f"{row['difference_ms']:+,.1f}",
            f"{row['low_ms']:+,.1f} to {row['high_ms']:+,.1f}", f"{row['share']:.0%}",
            f"{row['share_low']:.0%} to {row['share_high']:.0%}", WHY[row["why_unresolved"]],
            style="dim" if row["why_unresolved"] else "",
        )  # fmt: skip
    sums = [sum(row[name] for row in summary["differences"]) for name in ("middle_ms", "top_ms", "difference_ms")]
    table.add_row("TTFT", f"{sums[0]:,.1f}", f"{sums[1]:,.1f}", f"{sums[2]:+,.1f}", "", "100 %", "", "", style="bold")
    counts = {band["band"]: band["requests"] for band in summary["bands"]}
    title = f"What makes the {summary['top']} (n={counts[summary['top']]}) differ from {summary['middle']}"
    return add_title(f"{title} (n={counts[summary['middle']]}), {mode}, mean ms", table)


def render_request(path: dict[str, Any]) -> RenderableType:
    """Render one request's path."""
    table = make_table()
    for name in ("segment", "class"):
        table.add_column(name)
    for name in ("length", "drag", "slack"):
        table.add_column(name, justify="right")
    for row in path["segments"]:
        on_path = row["drag_ms"] > 0
        figures = (f"{row[f'{name}_ms']:,.2f}" for name in ("len", "drag", "slack"))
        table.add_row(row["segment"], row["class"], *figures, style="" if on_path else "dim")
    lines = [f"{path['request_id']}  {path['mode']}  TTFT {path['ttft_ms']:,.2f} ms"]
    if path["critical_branch"]:
        other = "decode" if path["critical_branch"] == "prefill" else "prefill"
        lines.append(
            f"the {path['critical_branch']} branch decided, {path['branch_lead_ms']:,.2f} ms behind the {other} branch"
        )
    if path["rank_lead_ms"] is not None:
        lines.append(f"the last rank landed {path['rank_lead_ms']:,.2f} ms behind the one before it")
    if path["unknown_segments"]:
        lines.append(f"unknown, the clocks are not related: {', '.join(path['unknown_segments'])}")
    return Group(Text("\n".join(lines)), table)

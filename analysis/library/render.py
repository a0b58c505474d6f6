"""The run library as a terminal table and as JSON (schema 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..render.table import add_title, make_table
from .entries import Entry

SCHEMA = 1

CONDITIONS = {
    "vLLM": "versions.vllm",
    "model": "model.name",
    "rate": "workload.rate",
    "prompts": "workload.input_lens",
    "cache": "cache_policy.prefix_caching",
}


def render_entries(entries: Sequence[Entry], root: Path) -> RenderableType:
    """Render the runs, what is concluded of each, and its notes."""
    return Group(_render_table(entries, root), Text(), *_list_texts(entries, root))


def _render_table(entries: Iterable[Entry], root: Path) -> RenderableType:
    table = make_table()
    for name in ("run", "created", "mode", *CONDITIONS):
        table.add_column(name, overflow="fold")
    for name in ("requests", "lost", "TTFT p50", "p99", "TPOT p50"):
        table.add_column(name, justify="right")
    for entry in entries:
        values = entry.values
        figures = (values.get("ttft_p50"), values.get("ttft_p99"), values.get("tpot_p50"))
        table.add_row(
            show_path(entry.path, root), entry.created[:16].replace("T", " "), _word(values.get("mode")),
            *(_word(values.get(key)) for key in CONDITIONS.values()),
            _word(values.get("requests")), _word(values.get("unfinished")),
            *("-" if figure is None else f"{figure:.1f}" for figure in figures),
        )  # fmt: skip
    return add_title("Runs, newest first; TTFT and TPOT in ms", table)


def _list_texts(entries: Iterable[Entry], root: Path) -> list[Text]:
    lines = []
    for entry in entries:
        name = show_path(entry.path, root)
        if "error" in entry.headline:
            lines.append(Text(f"{name}: {entry.headline['error']}", "red"))
        lines += [Text(f"{name}: {text}", "dim") for text in entry.headline.get("conclusions", ())]
        lines += [Text(f"{name}: {note.get('created', '')[:16]} {note['text']}", "cyan") for note in entry.notes]
    return lines


def show_path(path: Path, root: Path) -> str:
    """Show a run's path below the searched folder; the folder itself by its name."""
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return path.resolve().name if shown == "." else shown


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def render_document(entries: Sequence[Entry]) -> dict[str, Any]:
    """Render the runs as plain values."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "path": str(entry.path),
                "created": entry.created or None,
                "conditions": entry.conditions,
                "headline": {key: value for key, value in entry.headline.items() if key not in ("schema", "made_from")},
                "notes": entry.notes,
            }
            for entry in entries
        ],
    }

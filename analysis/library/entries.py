"""Run directories below a folder, each with its conditions, headline and notes as one searchable entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compare.conditions import flatten
from .headline import read_headline
from .notes import read_notes

MAX_DEPTH = 4


@dataclass
class Entry:
    """One run. conditions: dotted manifest keys. headline: see headline.py, read on demand. notes: oldest first."""

    path: Path
    conditions: dict[str, Any]
    created: str
    notes: list[dict[str, Any]]
    headline: dict[str, Any] = field(default_factory=dict)

    def load_headline(self) -> None:
        """Read or make the headline figures (a second or two when they are not cached)."""
        self.headline = self.headline or read_headline(self.path)

    @property
    def values(self) -> dict[str, Any]:
        """Everything that --where may ask for; figures are of the run's first mode."""
        modes: Mapping[str, Any] = self.headline.get("modes") or {}
        first: Mapping[str, Any] = next(iter(modes.values()), {})
        figures = {name: value for name, value in first.items() if not isinstance(value, Mapping) and value is not None}
        shares = {
            f"share.{name}": share for part in ("classes", "segments") for name, share in first.get(part, {}).items()
        }
        counts = {name: value for name, value in self.headline.items() if name in ("requests", "unfinished")}
        own: dict[str, Any] = {"run": self.path.name, "created": self.created, **self.conditions}
        return own | counts | figures | shares

    @property
    def text(self) -> str:
        """Everything that --grep searches."""
        conditions = (f"{key}={value}" for key, value in self.conditions.items())
        notes = (note["text"] for note in self.notes)
        return "\n".join((self.path.name, *conditions, *self.headline.get("conclusions", ()), *notes))


def find_entries(root: Path) -> list[Entry]:
    """Find the runs at or below a folder, newest first: folders with a manifest.json, or with traces/."""
    entries = [read_entry(path) for path in _find_runs(root, MAX_DEPTH)]
    return sorted(entries, key=lambda entry: (entry.created, entry.path.name), reverse=True)


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "manifest.json").is_file() or (folder / "traces").is_dir():
        yield folder
        return
    if depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _find_runs(child, depth - 1)


def read_entry(path: Path) -> Entry:
    """Read conditions and notes of a run; a damaged manifest leaves it without conditions."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    manifest = manifest if isinstance(manifest, dict) else {}
    return Entry(path, dict(flatten(manifest)), str(manifest.get("created", "")), read_notes(path))

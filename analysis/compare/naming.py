"""Names for two runs that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..breakdown import Breakdown


def name_apart(breakdowns: Sequence[Breakdown], paths: Sequence[Path]) -> list[Breakdown]:
    """Name runs of equal directory names by their parents too, or by A and B where that does not help either."""
    names = [item.run.name for item in breakdowns]
    if len(set(names)) == len(names):
        return list(breakdowns)
    longer = [f"{path.resolve().parent.name}/{name}" for path, name in zip(paths, names, strict=True)]
    if len(set(longer)) < len(longer):
        longer = [f"{name} ({letter})" for name, letter in zip(names, "AB", strict=False)]
    return [replace(item, run=replace(item.run, name=name)) for item, name in zip(breakdowns, longer, strict=True)]

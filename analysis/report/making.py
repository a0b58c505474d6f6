"""Run directories -> the sections of a report; opens each run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..breakdown import break_down
from ..compare.naming import name_apart
from ..errors import KvlensError
from ..source import Session, open_session
from .model import Report, RunData, Section
from .sections import find_sections


def load_run(path: Path) -> RunData:
    """Open a run, break it down and let every section load what it needs."""
    with open_session([path]) as session:
        breakdown = break_down(session)
        loaded = {name: _load(module.load, session) for name, module in find_sections() if hasattr(module, "load")}
    return RunData(breakdown, loaded)


def load_runs(paths: Sequence[Path]) -> list[RunData]:
    """Load one run or two, under names that tell them apart."""
    runs = [load_run(path) for path in paths]
    named = name_apart([run.breakdown for run in runs], paths)
    return [replace(run, breakdown=breakdown) for run, breakdown in zip(runs, named, strict=True)]


def _load(load: Any, session: Session) -> Any:
    """A run that lacks what a section needs (older spans, no step records) has no such section."""
    try:
        return load(session)
    except KvlensError:
        return None


def build_sections(report: Report) -> list[tuple[str, Section]]:
    """Build all sections that have something to say, in page order."""
    built = ((name, module.build(report)) for name, module in find_sections())
    return [(name, section) for name, section in built if section is not None]

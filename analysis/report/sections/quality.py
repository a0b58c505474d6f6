"""What a reader must know beside the figures: assumptions, missing halves, skipped data, people's notes."""

from __future__ import annotations

from typing import Any

from ...library.notes import read_notes
from ...render.notes import list_notes
from ...source import Session
from ..model import Heading, Notes, Report, Section

ORDER = 95


def load(session: Session) -> list[dict[str, Any]]:
    """Load the notes that people attached to the run (see kvlens runs)."""
    if not session.run.files:
        return []
    folder = session.run.files[0].parent
    return read_notes(folder.parent if folder.name == "traces" else folder)


def build(report: Report) -> Section | None:
    """Build the section."""
    parts: list[Heading | Notes] = []
    for run in report.runs:
        attached = run.loaded.get("quality") or ()
        notes = [*list_notes(run.breakdown), *(f"Note, {one['created'][:10]}: {one['text']}" for one in attached)]
        if notes:
            parts += [*([Heading(run.name)] if report.is_pair else []), Notes(notes)]
    return Section("Data quality", "How the figures were measured and what they lack.", parts) if parts else None

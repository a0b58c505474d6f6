"""What a reader must know beside the figures: assumptions, missing halves, skipped data, people's notes."""

from __future__ import annotations

from ...render.notes import list_notes
from ..model import Heading, Notes, Report, Section

ORDER = 95


def build(report: Report) -> Section | None:
    """Build the section."""
    parts: list[Heading | Notes] = []
    for run in report.runs:
        notes = list_notes(run.breakdown)
        if notes:
            parts += [*([Heading(run.name)] if report.is_pair else []), Notes(notes)]
    return Section("Data quality", "How the figures were measured and what they lack.", parts) if parts else None

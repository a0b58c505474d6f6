"""Under which conditions the runs were made; what differs between two is marked."""

from __future__ import annotations

from typing import Any

from ...compare.conditions import UNDECLARED, diff_conditions, flatten
from ..model import Report, Section, Table

ORDER = 90


def build(report: Report) -> Section | None:
    """Build the section; None when no run has a manifest."""
    sides = [dict(flatten(run.breakdown.run.manifest)) for run in report.runs]
    if not any(sides):
        return None
    keys = sorted({key for side in sides for key in side})
    rows = [[key, *(word(side.get(key)) for side in sides)] for key in keys]
    marks: dict[int, str] = {}
    lead = "What the run's manifest says."
    if report.is_pair:
        found = diff_conditions(*(run.breakdown.run.manifest for run in report.runs))
        status = {difference.key: difference.status for difference in found}
        marks = {place: status[key] for place, key in enumerate(keys) if status.get(key) == UNDECLARED}
        for row in rows:
            row.append(status.get(row[0], ""))
        lead = f"What the manifests say; {len(found)} conditions differ."
    head = ["condition", *(run.name for run in report.runs), *(["differs"] if report.is_pair else [])]
    return Section("Conditions", lead, [Table(head, rows, text_columns=len(head), marks=marks)])


def word(value: Any) -> str:
    """Word a condition's value."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

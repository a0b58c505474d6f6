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
    found = diff_conditions(*(run.breakdown.run.manifest for run in report.runs)) if report.is_pair else []
    status = {difference.key: difference.status for difference in found}
    # What differs comes first, in the order of its weight.
    keys = [*status, *sorted({key for side in sides for key in side} - set(status))]
    rows = [[key, *(word(side.get(key)) for side in sides)] for key in keys]
    marks = {place: UNDECLARED for place, key in enumerate(keys) if status.get(key) == UNDECLARED}
    head = ["condition", *(run.name for run in report.runs)]
    if not report.is_pair:
        return Section("Conditions", "What the run's manifest says.", [Table(head, rows, text_columns=2)])
    rows = [[*row, status.get(key, "")] for key, row in zip(keys, rows, strict=True)]
    lead = f"What the manifests say; {len(found)} conditions differ."
    return Section("Conditions", lead, [Table([*head, "differs"], rows, text_columns=4, marks=marks)])


def word(value: Any) -> str:
    """Word a condition's value."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

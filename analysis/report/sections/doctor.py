"""What the doctor found: what is wrong, what it costs, and what to set."""

from __future__ import annotations

from typing import Any

from ...doctor import Finding, diagnose, gather
from ...source import Session
from ..model import Heading, Report, Section, Table

ORDER = 15


def load(session: Session) -> list[Finding]:
    """Load the findings of a run."""
    return diagnose(gather(session))


def build(report: Report) -> Section | None:
    """Build the section; None when no run was diagnosed."""
    diagnosed = [(run.name, run.loaded.get("doctor")) for run in report.runs]
    known = [(name, findings) for name, findings in diagnosed if findings is not None]
    if not known:
        return None
    counts = ", ".join(
        f"{len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'} in {name}" for name, findings in known
    )
    parts = [part for name, findings in known for finding in findings for part in _show(name, finding, report)]
    return Section("Doctor", f"{counts[0].upper()}{counts[1:]}.", parts)


def _show(name: str, finding: Finding, report: Report) -> list[Any]:
    share = f"{finding.affected:,} of {finding.of:,} ({finding.share:.0%})" if finding.of else f"{finding.affected:,}"
    cost = "".join(f", costs {value:,.1f} ms at {point}" for point, value in finding.cost_ms.items())
    run = f"{name}: " if report.is_pair else ""
    parts: list[Any] = [
        Heading(f"{run}{finding.severity}: {finding.title}", f"Rule {finding.rule}; affects {share}{cost}."),
        f"Try: {finding.remedy}",
    ]
    if finding.evidence:
        columns = list(dict.fromkeys(key for row in finding.evidence for key in row))
        rows = [[str(row.get(column, "")) for column in columns] for row in finding.evidence]
        parts.append(Table(columns, rows))
    return parts

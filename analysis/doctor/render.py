"""Findings -> text for a terminal or a log, and the JSON document of `kvlens doctor --json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .engine import load_rules
from .facts import Facts
from .finding import Finding

SCHEMA = 1
"""Version of the document. 1: first release."""


def render_findings(name: str, facts: Facts, findings: Sequence[Finding]) -> str:
    """Render plain lines that a log and a grep can read."""
    judged = f"{facts.requests.height} requests, {len(load_rules())} rules"
    if not findings:
        return f"{name}: healthy ({judged}, no finding)"
    plural = "" if len(findings) == 1 else "s"
    return "\n\n".join([f"{name}: {len(findings)} finding{plural} ({judged})", *map(render_finding, findings)])


def render_finding(finding: Finding) -> str:
    """Render one finding: what, how much, evidence, remedy, where it is explained."""
    lines = [
        f"{finding.severity.upper()} {finding.rule}: {finding.title}",
        f"  affected: {finding.affected} of {finding.of} ({finding.share:.0%})" + render_cost(finding),
    ]
    lines += [f"  evidence: {' '.join(f'{key}={value}' for key, value in row.items())}" for row in finding.evidence[:3]]
    return "\n".join([*lines, f"  try: {finding.remedy}", f"  see: {finding.anchor}"])


def render_cost(finding: Finding) -> str:
    """Render what it costs, empty when that is no TTFT or not known."""
    if not finding.cost_ms:
        return ""
    return f"; costs them {finding.cost_ms['p50']:.1f} ms of TTFT at p50, {finding.cost_ms['p99']:.1f} ms at p99"


def render_json(name: str, facts: Facts, findings: Sequence[Finding]) -> str:
    """Render the JSON document."""
    document = {
        "schema": SCHEMA,
        "run": name,
        "requests": facts.requests.height,
        "rules": [rule.name for rule in load_rules()],
        "findings": [as_dict(finding) for finding in findings],
    }
    return json.dumps(document, indent=2)


def as_dict(finding: Finding) -> dict[str, Any]:
    """A finding as plain values."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "affected": finding.affected,
        "of": finding.of,
        "share": round(finding.share, 4),
        "cost_ttft_ms": finding.cost_ms,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
        "docs": finding.anchor,
    }

"""What a rule says: a finding with its evidence, its cost and the exact remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from .facts import Facts

INFO, WARNING, ERROR = "info", "warning", "error"
SEVERITIES = (ERROR, WARNING, INFO)
"""error: wrong or lost answers, requests that hang, engines that cannot talk. warning: users wait longer or memory is
held for nothing. info: the run cannot be judged fully."""

MAX_EVIDENCE = 5


@dataclass(frozen=True)
class Finding:
    """One diagnosis.

    title: what is wrong, with figures. affected, of: how many of how many (requests unless the title says otherwise).
    evidence: a few rows that show it. cost_ms: TTFT that it costs the affected requests, by percentile ("p50", "p99");
    empty when it costs no TTFT or the run cannot tell. remedy: what to set or do.
    """

    rule: str
    severity: str
    title: str
    affected: int
    of: int
    remedy: str
    evidence: tuple[dict[str, Any], ...] = ()
    cost_ms: dict[str, float] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Where the docs explain it."""
        return f"docs/doctor.md#{self.rule}"

    @property
    def share(self) -> float:
        """Affected share, 0..1."""
        return self.affected / self.of if self.of else 0.0


@dataclass(frozen=True)
class Rule:
    """One rule: its name (also its section in the docs), the cases of CASES it covers, and the function."""

    name: str
    severity: str
    remedy: str
    check: Callable[[Facts], Finding | None]
    cases: tuple[int, ...] = ()

    def find(
        self,
        title: str,
        affected: pl.DataFrame,
        of: int,
        *,
        columns: tuple[str, ...] = (),
        cost: pl.Series | None = None,
        severity: str | None = None,
        remedy: str | None = None,
    ) -> Finding:
        """Make a finding of this rule.

        affected: one row per affected thing, the worst first. columns: those to show as evidence; names that end in _ns
        are shown in ms. cost: TTFT in ns that it costs each affected request.
        """
        return Finding(
            rule=self.name,
            severity=severity or self.severity,
            title=title,
            affected=affected.height,
            of=of,
            remedy=remedy or self.remedy,
            evidence=tuple(show(row) for row in affected.select(columns).head(MAX_EVIDENCE).iter_rows(named=True)),
            cost_ms=describe_cost(cost),
        )


def show(row: dict[str, Any]) -> dict[str, Any]:
    """Turn ns into ms and leave out what is not known."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or value == "":
            continue
        if name.endswith("_ns"):
            shown[f"{name.removesuffix('_ns')}_ms"] = round(float(value) / 1e6, 3)
        else:
            shown[name] = round(value, 4) if isinstance(value, float) else value
    return shown


def describe_cost(cost: pl.Series | None) -> dict[str, float]:
    """p50 and p99 (ms) of a cost in ns; empty without values."""
    known = cost.drop_nulls() if cost is not None else None
    if known is None or known.is_empty():
        return {}
    return {
        name: round(float(known.quantile(q, "linear") or 0.0) / 1e6, 3) for name, q in (("p50", 0.5), ("p99", 0.99))
    }

"""Which alerts began to fire in which incident, as the Prometheus of the run says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.prometheus import Prometheus, Span
from dashboards.rules.alerts import make_alerts
from dashboards.rules.model import Alert

from .profile import CONFIG

ALERTS = [rule.name for group in make_alerts(CONFIG) for rule in group.rules if isinstance(rule, Alert)]
# A scrape and an evaluation later than what made it fire.
_LATE_S = 2.0


@dataclass(frozen=True)
class Row:
    """One incident: what began to fire in it, what should, what may."""

    cluster: str
    name: str
    fired: frozenset[str]
    wanted: frozenset[str]
    also: frozenset[str]

    @property
    def missing(self) -> frozenset[str]:
        return self.wanted - self.fired

    @property
    def wrong(self) -> frozenset[str]:
        return self.fired - self.wanted - self.also


def read_rows(url: str, phases: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row per phase."""
    prometheus = Prometheus(url)
    rows = []
    for phase in phases:
        began, ended = float(phase["began"]), float(phase["ended"])
        query = f'ALERTS{{alertstate="firing", cluster="{phase["cluster"]}"}}'
        # One second apart; what fired before it began belongs to an earlier phase.
        span = Span(began - 1, min(ended + _LATE_S, began + 239))
        fired = {series.labels["alertname"] for series in prometheus.read(query, span)}
        before = {series.labels["alertname"] for series in prometheus.read_instant(query, began - 1)}
        rows.append(
            Row(
                str(phase["cluster"]), str(phase["name"]), frozenset(fired - before),
                frozenset(phase["alerts"]), frozenset(phase["also"]),
            )
        )  # fmt: skip
    return rows


def render_rows(rows: Sequence[Row]) -> str:
    """Return the matrix: alerts down, incidents across."""
    heads = [f"{chr(ord('a') + index)} = {row.cluster}: {row.name}" for index, row in enumerate(rows)]
    lines = ["incidents", *(f"  {head}" for head in heads), ""]
    lines.append(f"{'alert':30}" + "".join(f" {head[0]}" for head in heads))
    for alert in ALERTS:
        lines.append(f"{alert:30}" + "".join(f" {_mark(row, alert)}" for row in rows))
    lines.append("F fired as it must, + fired because it is true as well, MISSING: !, WRONG: ?, not fired: .")
    return "\n".join(lines)


def _mark(row: Row, alert: str) -> str:
    if alert in row.missing:
        return "!"
    if alert not in row.fired:
        return "."
    return "F" if alert in row.wanted else "+" if alert in row.also else "?"

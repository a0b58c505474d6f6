"""What a rule is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recording:
    """A series that is computed once and read by many."""

    record: str
    expr: str


@dataclass(frozen=True)
class Alert:
    """A page or a ticket.

    Attributes:
        name: of the alert; its runbook has the same name.
        severity: critical (somebody gets up), warning (today) or info (when you next look).
        hold: how long it must be true.
        expr: PromQL; true when there is a series.
        summary: what is wrong, in one sentence that a tired person understands.
        action: the first thing to do.
    """

    name: str
    severity: str
    hold: str
    expr: str
    summary: str
    action: str


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other.

    interval: how often, as Prometheus writes it.
    """

    name: str
    interval: str
    rules: tuple[Recording | Alert, ...]

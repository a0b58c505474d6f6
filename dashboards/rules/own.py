"""Alerts about kvlens itself: it must say when it is blind, and must never be a cause."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import rate_of, total
from .model import Alert

_WHERE = "cluster, namespace, model_name, instance, process"


def dropping(config: Config) -> Alert:
    """What was dropped is missing in traces; metrics keep counting except for dropped events."""
    spans = rate_of(f'{config.name(table.SPANS)}{{state=~"dropped|failed"}}')
    events = rate_of(f'{config.name(table.EVENTS)}{{outcome="dropped"}}')
    return Alert(
        "KvlensDropping", "warning", "10m",
        f"{total(_WHERE, spans)} > 0 or {total(_WHERE, events)} > 0",
        "kvlens loses {{ $value | humanize }} records a second in the {{ $labels.process }} of {{ $labels.instance }}: "
        "traces have holes. Serving is not affected.",
        "Check the exporter or collector; sample less.",
    )  # fmt: skip


def guard_errors(config: Config) -> Alert:
    """A swallowed failure of our own: harmless for requests, but a bug to report."""
    return Alert(
        "KvlensGuardErrors", "info", "5m",
        f"{total(_WHERE, f'increase({config.name(table.GUARD_ERRORS)}[30m])')} > 0",
        "kvlens swallowed {{ $value | humanize }} failures of its own in the {{ $labels.process }} of "
        "{{ $labels.instance }}. Serving is not affected.",
        "Find 'kvlens' in the engine's log and report it.",
    )  # fmt: skip

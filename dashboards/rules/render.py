"""Write rules as the YAML that Prometheus reads; JSON strings are YAML, so no library is needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ..config import Config
from .model import Alert, Group, Recording

NOTE = "# Built by `kvlens dashboards build`: change the Python in dashboards/rules."


def render(config: Config, groups: Iterable[Group]) -> str:
    """Return a rules file."""
    lines = [NOTE, "groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            lines += render_alert(config, rule) if isinstance(rule, Alert) else render_recording(rule)
    return "\n".join(lines) + "\n"


def render_recording(rule: Recording) -> Iterator[str]:
    """Yield the lines of a recording rule."""
    yield f"      - record: {json.dumps(rule.record)}"
    yield from _expression(rule.expr)


def render_alert(config: Config, rule: Alert) -> Iterator[str]:
    """Yield the lines of an alerting rule."""
    yield f"      - alert: {rule.name}"
    yield from _expression(rule.expr)
    yield f"        for: {rule.hold}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(rule.summary)}"
    yield f"          action: {json.dumps(rule.action)}"
    yield f"          runbook_url: {json.dumps(f'{config.runbook_url}/{rule.name}.md')}"


def _expression(text: str) -> Iterator[str]:
    yield "        expr: |-"
    yield from (f"          {line}" for line in text.splitlines())

"""Find every query in built dashboards and rules, with the variables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .config import Config
from .rules.alerts import make_alerts
from .rules.model import Alert
from .rules.recording import make_recordings

PROMQL, SQL, TRACEQL = "promql", "sql", "traceql"
ALERT = "alert"

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")
_TIME_FILTER = re.compile(r"\$__timeFilter\((\w+)\)")
_TIME_INTERVAL = re.compile(r"\$__timeInterval\((\w+)\)")
_FAR_PAST, _FAR_FUTURE = (
    "toDateTime64('2001-01-01 00:00:00', 9, 'UTC')",
    "toDateTime64('2100-01-01 00:00:00', 9, 'UTC')",
)


@dataclass(frozen=True)
class Target:
    """A query.

    Attributes:
        where: dashboard and panel, or group and rule.
        kind: promql, sql, traceql, or alert (PromQL that is empty when all is well).
        text: as written, variables included.
    """

    where: str
    kind: str
    text: str

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the query with its variables replaced; unknown ones stay.

        values: may hold `__fromTime` and `__toTime` (SQL); without them a query is about all times.
        """
        text = self.text
        if self.kind == SQL:
            start, end = values.get("__fromTime", _FAR_PAST), values.get("__toTime", _FAR_FUTURE)
            text = _TIME_FILTER.sub(rf"(\1 >= {start} AND \1 <= {end})", text)
            text = text.replace("$__fromTime", start).replace("$__toTime", end)
            text = _TIME_INTERVAL.sub(r"toStartOfInterval(\1, INTERVAL 1 SECOND)", text)
        return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)


def list_variables(text: str) -> set[str]:
    """Return the names of the variables in a text, Grafana's own (`__...`) left out."""
    names = {match[1] or match[2] for match in _VARIABLE.finditer(text)}
    return {name for name in names if not name.startswith("__")}


def find_board_targets(board: Mapping[str, Any]) -> Iterator[Target]:
    """Yield the queries of one dashboard's JSON."""
    for panel in board["panels"]:
        for target in panel.get("targets") or ():
            where = f"{board['uid']} / {panel['title']} / {target['refId']}"
            if "expr" in target:
                yield Target(where, PROMQL, target["expr"])
            elif "rawSql" in target:
                yield Target(where, SQL, target["rawSql"])
            else:
                yield Target(where, TRACEQL, target["query"])


def find_rule_targets(config: Config) -> Iterator[Target]:
    """Yield the expressions of all rules."""
    for group in (*make_recordings(config), *make_alerts(config)):
        for rule in group.rules:
            if isinstance(rule, Alert):
                yield Target(f"{group.name} / {rule.name}", ALERT, rule.expr)
            else:
                yield Target(f"{group.name} / {rule.record}", PROMQL, rule.expr)


def find_targets(config: Config, files: Mapping[str, str]) -> Iterator[Target]:
    """Yield every query of built files and rules."""
    for path, text in files.items():
        if path.endswith(".json"):
            yield from find_board_targets(json.loads(text))
    yield from find_rule_targets(config)

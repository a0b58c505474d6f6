"""Ask a live Prometheus and an embedded ClickHouse every query, and say which are empty or fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.source import Session, open_session

from .compress import compress
from .config import Config
from .prometheus import Prometheus, Span
from .sql import slowest_sql
from .targets import ALERT, SQL, TRACEQL, Target

OK, EMPTY, FAILED, SKIPPED = "ok", "empty", "failed", "skipped"
DEFAULTS: Mapping[str, str] = {
    **dict.fromkeys(("cluster", "namespace", "model_name", "role", "engine"), ".*"),
    "baseline": "1h",
    "__rate_interval": "5m",
    "slower": "1s",
}


@dataclass(frozen=True)
class Finding:
    """What became of one query: its state, rows it gave, and why not."""

    where: str
    kind: str
    state: str
    rows: int = 0
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def check_prometheus(
    config: Config,
    targets: Iterable[Target],
    prometheus: Prometheus,
    values: Mapping[str, str],
    *,
    span: Span,
    factor: float = 1,
) -> Iterator[Finding]:
    """Yield a finding for each PromQL query. An alert is empty when all is well: its series must exist.

    span: what the queries look at; over a range, a row is a series with any value in it. factor: see `compress`.
    """
    for target in targets:
        if target.kind in {SQL, TRACEQL}:
            continue
        # Before the variables: what stands for them is meant as it is.
        expression = replace(target, text=compress(target.text, factor)).fill(values)
        try:
            rows = len(prometheus.read(expression, span))
        except ValueError as error:
            yield Finding(target.where, target.kind, FAILED, 0, str(error))
            continue
        missing = sorted(list_names(config, expression) - prometheus.names)
        empty = bool(missing) if target.kind == ALERT else not rows
        why = f"no series {', '.join(missing)}" if missing else "series are there, none fits"
        yield Finding(target.where, target.kind, EMPTY if empty else OK, rows, why if empty else "")


def list_names(config: Config, expression: str) -> set[str]:
    """Return the metrics that an expression reads."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    starts = "|".join(re.escape(start) for start in (config.prefix, config.recorded, config.efa_prefix, "vllm:"))
    return set(re.findall(rf"(?<![\w:])(?:{starts})[\w:]+", bare))


def check_run(config: Config, targets: Iterable[Target], run: Path, values: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each SQL query, run on a recorded run."""
    with open_session([run]) as session:
        trace = find_trace(config, session, values)
        for target in targets:
            if target.kind == SQL:
                yield check_sql(session, target, {**values, "trace_id": trace})


def find_trace(config: Config, session: Session, values: Mapping[str, str]) -> str:
    """Return the trace id of the slowest request, for the panels of one request."""
    rows = ask_sql(session, Target("", SQL, slowest_sql(config)).fill(values))
    return str(rows["trace_id"][0].as_py()) if rows.num_rows else ""


def check_sql(session: Session, target: Target, values: Mapping[str, str]) -> Finding:
    """Run one SQL query."""
    try:
        rows = ask_sql(session, target.fill(values)).num_rows
    except Exception as error:
        # chDB raises RuntimeError with ClickHouse's text, pyarrow its own.
        return Finding(target.where, target.kind, FAILED, 0, str(error).strip().splitlines()[0][:300])
    return Finding(target.where, target.kind, OK if rows else EMPTY, rows, "" if rows else "no row")


def skip_others(targets: Iterable[Target], *, sql: bool, promql: bool) -> Iterator[Finding]:
    """Yield a finding for each query that nothing here was asked to answer."""
    for target in targets:
        if target.kind == TRACEQL:
            yield Finding(target.where, target.kind, SKIPPED, 0, "needs a Tempo")
        elif target.kind == SQL and not sql:
            yield Finding(target.where, target.kind, SKIPPED, 0, "give --run")
        elif target.kind != SQL and not promql:
            yield Finding(target.where, target.kind, SKIPPED, 0, "give --prometheus")


def ask_sql(session: Session, sql: str) -> Any:
    """Run SQL text in a session."""
    # Session.query takes the name of a file of analysis/sql; these texts are built around such files.
    return session._database.query(sql, "ArrowTable")

"""Ask the data sources for what a panel shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.source import Session

from ..check import ask_sql
from ..prometheus import Prometheus, Series, Span
from ..targets import PROMQL, SQL, TRACEQL, Target

Panel = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the queries of a panel gave.

    series: name -> series, of graphs and numbers. rows: of tables. exemplars: dots of a graph. note: why there is
    nothing, or nothing more.
    """

    series: tuple[tuple[str, Series], ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    exemplars: tuple[Series, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Sources:
    """Where to ask: a Prometheus, a run opened in chDB (or none), and the time."""

    prometheus: Prometheus
    session: Session | None
    span: Span
    values: Mapping[str, str] = field(default_factory=dict)


def read_panel(panel: Panel, sources: Sources) -> Answer:
    """Return what a panel shows; what fails is said in its note."""
    try:
        if any("expr" in target for target in panel["targets"]):
            return _read_promql(panel, sources)
        if any("rawSql" in target for target in panel["targets"]):
            return _read_sql(panel, sources)
    except Exception as error:
        # Of two data bases: one panel that fails must not take the page with it.
        return Answer(note=f"failed: {str(error).strip().splitlines()[0][:300]}")
    queries = " ".join(Target("", TRACEQL, target["query"]).fill(sources.values) for target in panel["targets"])
    return Answer(note=f"Asks Tempo, which a preview has not: {queries}")


def _read_promql(panel: Panel, sources: Sources) -> Answer:
    found: list[tuple[str, Series]] = []
    exemplars: list[Series] = []
    for target in panel["targets"]:
        expression = Target("", PROMQL, target["expr"]).fill(sources.values)
        if target.get("instant"):
            instant = sources.prometheus.read_instant(expression, sources.span.end)
            return Answer(rows=tuple(_make_row(panel, series) for series in instant))
        for series in sources.prometheus.read(expression, sources.span):
            found.append((name_series(target.get("legendFormat") or "", series.labels), series))
        if target.get("exemplar") and not exemplars:
            exemplars = sources.prometheus.read_exemplars(expression, sources.span)
    return Answer(series=tuple(found), exemplars=tuple(exemplars))


def name_series(legend: str, labels: Mapping[str, str]) -> str:
    """Return a series' name as Grafana makes it of the legend's format."""
    if legend in {"", "__auto"}:
        return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key != "__name__") or "value"
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), legend).strip()


def _make_row(panel: Panel, series: Series) -> Mapping[str, Any]:
    row = {**{key: value for key, value in series.labels.items() if key != "__name__"}, "Value": series.points[-1][1]}
    hidden = {
        name
        for transformation in panel.get("transformations") or ()
        for name, hides in transformation["options"].get("excludeByName", {}).items()
        if hides
    }
    return {key: value for key, value in row.items() if key not in hidden}


def _read_sql(panel: Panel, sources: Sources) -> Answer:
    if sources.session is None:
        return Answer(note="Asks ClickHouse: give --source RUN.")
    text = Target("", SQL, panel["targets"][0]["rawSql"]).fill(sources.values)
    rows = ask_sql(sources.session, text).to_pylist()
    if panel["type"] == "timeseries":
        return Answer(series=tuple(_make_series(rows)))
    return Answer(rows=tuple(rows))


def _make_series(rows: list[dict[str, Any]]) -> list[tuple[str, Series]]:
    """Return the series of rows with a time, a text and a number."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        time, name, value = row.values()
        at = time.timestamp() if hasattr(time, "timestamp") else float(time)
        if value is not None:
            found.setdefault(str(name), []).append((at, float(value)))
    return [(name, Series({}, tuple(points))) for name, points in sorted(found.items())]

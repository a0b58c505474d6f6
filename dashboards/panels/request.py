"""Panels of one request: its budget and waterfall, from Tempo or ClickHouse."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import table, tempo
from grafana_foundation_sdk.models import dashboard as model

from ..clickhouse import ClickHouseQuery
from ..config import Config
from ..sql import BUDGET, budget_sql, slowest_sql, trace_sql
from .make import Panel, clickhouse_source, make_sql_table, make_traces

__all__ = ["MILLISECONDS", "slowest_sql"]

MILLISECONDS = dict.fromkeys(("ttft", *(name for name, _, _ in BUDGET)), "ms")

_BUDGET = (
    "Milliseconds of this request, in order: they add up from P's arrival to D's first token. 'until posted' is all "
    "between the end of the prompt and the begin of the wire; wire lasts until a poll or notification saw its end. "
    "kvlens breakdown splits it further, says when the bytes landed, and adds the router."
)


def tempo_source(config: Config) -> Any:
    """Return the reference of the Tempo data source."""
    return model.DataSourceRef(type_val="tempo", uid=config.tempo_uid)


def _traceql(config: Config, query: str) -> Any:
    return tempo.TempoQuery().ref_id("A").query(query).query_type("traceql").limit(20).datasource(tempo_source(config))


def tempo_waterfall(config: Config) -> Panel:
    return make_traces(
        "Waterfall", "Spans of the router and of both engines. The longest gap without compute is the cause.",
        tempo_source(config), _traceql(config, "${trace_id}"),
    )  # fmt: skip


def tempo_slow(config: Config) -> Panel:
    return (
        table.Panel().title("Slow requests").description("Pick a trace id and put it into the field above.")
        .datasource(tempo_source(config))
        .with_target(_traceql(config, '{ name = "router.request" && duration > $slower }'))
    )  # fmt: skip


def tempo_waits(config: Config) -> Panel:
    return (
        table.Panel().title("Long waits for remote KV").description("Decode engines that waited; open one of them.")
        .datasource(tempo_source(config))
        .with_target(_traceql(config, '{ name = "decode.remote_wait" && duration > $slower }'))
    )  # fmt: skip


def clickhouse_waterfall(config: Config) -> Panel:
    source = clickhouse_source(config)
    query = ClickHouseQuery(trace_sql(config), source, kind="traces")
    return make_traces(
        "Waterfall",
        "Spans of the router and of both engines. The longest gap without compute is the cause.", source, query,
    )  # fmt: skip


def budget(config: Config) -> Panel:
    return make_sql_table(config, "Budget", _BUDGET, budget_sql(config), units={"ms": "ms", "share": "percentunit"})


def slowest(config: Config) -> Panel:
    return make_sql_table(
        config, "Slowest requests",
        "Click a trace id to see it on this page.", slowest_sql(config), links=True, units=MILLISECONDS,
    )  # fmt: skip

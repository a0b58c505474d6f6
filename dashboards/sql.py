"""ClickHouse queries of the panels: analysis/sql's texts, which the commands use too, with the plugin's time macros."""

from __future__ import annotations

from analysis.source import read_sql

from .config import Config

_FROM = "toDateTime64('2001-01-01 00:00:00', 9, 'UTC')"
_TO = "toDateTime64('2100-01-01 00:00:00', 9, 'UTC')"
_THREADS = "SpanName = 'threads.sample'"

# An upper bound: `kvlens breakdown` places the landing between two polls. In push, D may be notified and its scheduler
# told before P's next poll sees the end of its own write: it has landed by then.
_LANDED = "least(landed_done, coalesce(notified_at, landed_done), d_told)"

# From P's arrival to D's first token, in order. What lies before the wire is one part: its order differs by mode.
BUDGET = (
    ("prefill_queue", "p_start", "p_sched"),
    ("prefill_compute", "p_sched", "p_end"),
    ("until posted", "p_end", "post_end"),
    ("wire", "post_end", _LANDED),
    ("completion_lag", _LANDED, "d_told"),
    ("decode_queue", "d_told", "d_sched"),
    ("first_decode", "d_sched", "d_first"),
)


def embed(config: Config, name: str) -> str:
    """Return one of analysis/sql's queries as a subquery over the dashboard's time range."""
    text = read_sql(name).replace("{table:Identifier}", config.spans_table)
    text = text.replace(_FROM, "$__fromTime").replace(_TO, "$__toTime")
    text = text.replace(_THREADS, f"{_THREADS} AND $__timeFilter(Timestamp)")
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "(\n" + "\n".join(kept) + "\n)"


def budget_sql(config: Config) -> str:
    """Return the budget of ${trace_id}, one row per part and attempt."""
    parts = ",\n    ".join(f"('{name}', {start}, {end})" for name, start, end in BUDGET)
    return (
        f"SELECT mode, p_engine, d_engine, part.1 AS segment, (part.3 - part.2) / 1e6 AS ms,\n"
        f"    (part.3 - part.2) / nullIf(d_first - p_start, 0) AS share\n"
        f"FROM {embed(config, 'milestones')}\n"
        f"ARRAY JOIN [\n    {parts}\n] AS part\n"
        f"WHERE '${{trace_id}}' IN (p_trace, d_trace) AND ms IS NOT NULL"
    )


def slowest_sql(config: Config) -> str:
    """Return the requests whose first token came last, with their parts in milliseconds."""
    parts = ",\n    ".join(f"round(({end} - {start}) / 1e6, 1) AS `{name}`" for name, start, end in BUDGET)
    return (
        f"SELECT coalesce(d_trace, p_trace) AS trace_id, mode, p_engine, d_engine, prompt_tokens,\n"
        f"    round((d_first - p_start) / 1e6, 1) AS ttft,\n    {parts}\n"
        f"FROM {embed(config, 'milestones')}\n"
        f"WHERE ttft IS NOT NULL\nORDER BY ttft DESC\nLIMIT 20"
    )


def trace_sql(config: Config) -> str:
    """Return the spans of ${trace_id} in the columns that Grafana's waterfall reads."""

    def tags(column: str) -> str:
        return f"arrayMap(key -> map('key', key, 'value', {column}[key]), mapKeys({column}))"

    return (
        "SELECT TraceId AS traceID, SpanId AS spanID, ParentSpanId AS parentSpanID, ServiceName AS serviceName,\n"
        "    SpanName AS operationName, Timestamp AS startTime, Duration / 1e6 AS duration,\n"
        f"    {tags('SpanAttributes')} AS tags,\n    {tags('ResourceAttributes')} AS serviceTags\n"
        f"FROM {config.spans_table}\n"
        "WHERE TraceId = '${trace_id}' AND $__timeFilter(Timestamp)\nORDER BY startTime"
    )


def connector_sql(config: Config) -> str:
    """Return the connector's share of the decode steps' time, by engine over time."""
    return (
        "WITH fromUnixTimestamp64Nano(begin) AS at\nSELECT $__timeInterval(at) AS time, engine,\n"
        "    sum(coalesce(submit, 0) + coalesce(save, 0) + coalesce(poll, 0) + build)\n"
        "        / sum(finish - begin) AS connector\n"
        f"FROM {embed(config, 'steps')}\n"
        "WHERE decode_tokens > 0\nGROUP BY time, engine\nHAVING sum(finish - begin) > 0\nORDER BY time"
    )


def slow_steps_sql(config: Config) -> str:
    """Return the slowest steps with their cause."""

    def ms(name: str) -> str:
        return f"toFloat64OrZero(SpanAttributes['kv_transfer.{name}_ns']) / 1e6 AS {name}_ms"

    return (
        "SELECT Timestamp AS time, ResourceAttributes['service.instance.id'] AS engine,\n"
        "    SpanAttributes['kv_transfer.cause'] AS cause, Duration / 1e6 AS ms,\n"
        f"    {ms('bound')}, {ms('submit')}, {ms('poll')},\n"
        "    SpanAttributes['kv_transfer.requests'] AS requests, SpanAttributes['kv_transfer.tokens'] AS tokens\n"
        f"FROM {config.spans_table}\n"
        "WHERE ScopeName = 'kvlens' AND SpanName = 'step.slow' AND $__timeFilter(Timestamp)\n"
        "ORDER BY ms DESC\nLIMIT 50"
    )


def threads_sql(config: Config) -> str:
    """Return cores used and the time spent waiting for one, by thread."""
    return (
        "SELECT engine, process, rank, kind, name, threads, cpu_ns / sampled_ns AS cores,\n"
        "    wait_ns / sampled_ns AS wait_share\n"
        f"FROM {embed(config, 'threads')}\nWHERE sampled_ns > 0\nORDER BY cores DESC"
    )

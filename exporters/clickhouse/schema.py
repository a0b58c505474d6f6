"""The statements that make kvlens's tables: on one node, or replicated on every shard under a distributed table.

The texts are in sql/. Names of the collector: `otel_traces`, `otel_traces_trace_id_ts` and its view. On a cluster the
collector must not create tables of its own (`create_schema: false`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

TRACES, TRACE_TIMES, IMPORTS = "otel_traces", "otel_traces_trace_id_ts", "kvlens_imports"
SPAN_IDS, ARRIVING = "kvlens_span_ids", "kvlens_arriving"
KEEP_DAYS = 20_000
"""Retention of an embedded table: runs are looked at again after years, and times end in the year 2106."""
FAST_TABLES = {
    "kvlens_spans": "MergeTree",
    "kvlens_processes": "ReplacingMergeTree",
    "kvlens_counts": "SummingMergeTree",
}
"""Tables that views fill as spans arrive, with their engines: what the analysis reads instead of the wide table."""
SQL_DIRECTORY = Path(__file__).parent / "sql"
DEFAULT_TTL_DAYS = 14
DISTRIBUTED = {
    TRACES: "cityHash64(TraceId)",
    TRACE_TIMES: "cityHash64(TraceId)",
    "kvlens_spans": "leg",
    "kvlens_processes": "cityHash64(process)",
    "kvlens_counts": "cityHash64(boot)",
}
"""Tables with a distributed one above their shards, and its sharding key."""
COLUMNS = (
    "Timestamp", "TraceId", "SpanId", "ParentSpanId", "TraceState", "SpanName", "SpanKind", "ServiceName",
    "ResourceAttributes", "ScopeName", "ScopeVersion", "SpanAttributes", "Duration", "StatusCode", "StatusMessage",
    "Events.Timestamp", "Events.Name", "Events.Attributes", "Links.TraceId", "Links.SpanId", "Links.TraceState",
    "Links.Attributes",
)  # fmt: skip
"""Columns of otel_traces in its order, nested ones as the arrays that they are."""

RESOURCE_KEYS = (
    "service.instance.id", "process.pid", "kvlens.role", "kvlens.mode", "kvlens.clock.boot_id",
    "kvlens.clock.anchor_unix_ns", "kvlens.clock.anchor_perf_ns",
)  # fmt: skip
"""What the typed tables need of a resource, in the order of kvlens_arriving."""

PROCESS = "concat(boot, ' ', toString(unix), ' ', toString(perf))"
"""How the typed tables name a process: one more column of kvlens_arriving, Resource_process."""

_RESOURCE = re.compile(r"ResourceAttributes\['([\w.]+)'\]")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_CLUSTER = re.compile(r"\{?[\w.-]+\}?")


@dataclass(frozen=True)
class Layout:
    """Where the tables live.

    database: ClickHouse database. ttl_days: whole days that spans are kept. cluster: name or macro (`{cluster}`) of the
    cluster, None for a single node.

    Raises:
        ValueError: a name that is none, or a retention below one day.
    """

    database: str = "otel"
    ttl_days: int = DEFAULT_TTL_DAYS
    cluster: str | None = None

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.database):
            raise ValueError(f"{self.database!r} is no database name")
        if self.cluster is not None and not _CLUSTER.fullmatch(self.cluster):
            raise ValueError(f"{self.cluster!r} is no cluster name")
        if self.ttl_days < 1:
            raise ValueError("spans must be kept for at least one day")


def render_statements(layout: Layout) -> list[str]:
    """Return the statements in the order in which they must run; running them again changes nothing."""
    on_cluster = f" ON CLUSTER '{layout.cluster}'" if layout.cluster else ""
    suffix = "_local" if layout.cluster else ""
    common = {"database": layout.database, "ttl_days": str(layout.ttl_days), "on_cluster": on_cluster}

    def render(name: str, table: str, **more: str) -> str:
        return _fill(name, table=table, **common, **more)

    traces, times = TRACES + suffix, TRACE_TIMES + suffix
    statements = [
        f"CREATE DATABASE IF NOT EXISTS {layout.database}{on_cluster}",
        render("otel_traces", traces, engine=_engine(layout, "MergeTree")),
        render("otel_traces_trace_id_ts", times, engine=_engine(layout, "MergeTree")),
        render("otel_traces_trace_id_ts_mv", f"{TRACE_TIMES}_mv", target=times, source=traces),
        render("kvlens_imports", IMPORTS, engine=_engine(layout, "ReplacingMergeTree", everywhere=True)),
    ]
    statements += render_fast_statements(layout)
    if layout.cluster:
        statements += [
            render("distributed", name, local=f"{name}_local", cluster=layout.cluster, key=key)
            for name, key in DISTRIBUTED.items()
        ]
    return statements


def render_fast_statements(layout: Layout) -> list[str]:
    """Return the statements that make the fast tables and the views that fill them from the wide one.

    A view sees what is inserted after it was made: the analysis uses these tables only where they hold everything.
    """
    return [text for table, kind in FAST_TABLES.items() for text in _render_view(layout, table, kind)]


def _keep_everything(statement: str) -> str:
    """Take the retention out: otel_traces of an embedded database has none, and both must hold the same."""
    return "\n".join(line for line in statement.splitlines() if not line.startswith("TTL "))


def render_embedded_statements(layout: Layout) -> list[str]:
    """Return the statements that make what an embedded database has beside otel_traces.

    Views of kvlens_arriving fill otel_traces, the fast tables and the span ids. In a database that has views of
    otel_traces already (the collector's layout), those stay: the names are the same.
    """
    common = {"database": layout.database, "ttl_days": str(layout.ttl_days), "on_cluster": ""}
    traces, arriving = f"{layout.database}.{TRACES}", f"{layout.database}.{ARRIVING}"
    wide = f"(SELECT {', '.join(f'`{name}`' for name in COLUMNS)} FROM {arriving})"
    statements = [
        render_arriving(arriving, traces, "Null"),
        _fill("fast_mv", table=f"{TRACES}_mv", target=TRACES, select=wide, **common),
        _fill("kvlens_imports", table=IMPORTS, engine="ReplacingMergeTree", **common),
    ]
    for table, kind in (*FAST_TABLES.items(), (SPAN_IDS, "MergeTree")):
        select = read_arriving_part(table.removeprefix("kvlens_"), arriving)
        statements += [
            _keep_everything(_fill(table, table=table, engine=kind, codec="LZ4", **common)),
            _fill("fast_mv", table=f"{table}_mv", target=table, select=select, **common),
        ]
    return statements


def render_arriving(table: str, source: str, engine: str) -> str:
    """Return the statement that makes a table of what a message's spans have on their way in."""
    names = [*map(name_resource, RESOURCE_KEYS), "Resource_process"]
    columns = ", ".join(f"toLowCardinality('') AS {name}" for name in names)
    return _fill("kvlens_arriving", table=table, source=source, engine=engine, columns=columns)


def name_resource(key: str) -> str:
    """Return the column of kvlens_arriving that holds a resource's attribute."""
    return f"Resource_{key.replace('.', '_')}"


def _render_view(layout: Layout, table: str, kind: str) -> list[str]:
    on_cluster = f" ON CLUSTER '{layout.cluster}'" if layout.cluster else ""
    suffix = "_local" if layout.cluster else ""
    common = {"database": layout.database, "ttl_days": str(layout.ttl_days), "on_cluster": on_cluster}
    source = f"{layout.database}.{TRACES}{suffix}"
    select = read_part(table.removeprefix("kvlens_")).replace("{table:Identifier}", source)
    target = table + suffix
    return [
        _fill(table, table=target, engine=_engine(layout, kind), codec="ZSTD(1)", **common),
        _fill("fast_mv", table=f"{table}_mv", target=target, select=select, **common),
    ]


def read_part(name: str) -> str:
    """Return a sub-select over the wide table (sql/parts) that the analysis and the views share."""
    return (SQL_DIRECTORY / "parts" / f"{name}.sql").read_text(encoding="utf-8").strip()


def read_arriving_part(name: str, table: str) -> str:
    """Return the same sub-select over a table like kvlens_arriving: what it asks of a resource is a column there."""
    text = _RESOURCE.sub(lambda found: name_resource(found[1]), read_part(name)).replace(PROCESS, "Resource_process")
    return text.replace("{table:Identifier}", table)


def _engine(layout: Layout, kind: str, *, everywhere: bool = False) -> str:
    """Replicas of one shard share a path; a table that is the same everywhere leaves the shard out."""
    if not layout.cluster:
        return kind
    shard = "all" if everywhere else "{shard}"
    return f"Replicated{kind}('/clickhouse/tables/{shard}/{{database}}/{{table}}', '{{replica}}')"


def _fill(name: str, **values: str) -> str:
    text = (SQL_DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")
    return Template(text).substitute(values).strip()

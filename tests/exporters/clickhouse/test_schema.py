"""The statements run (single node) or at least parse (cluster), and the projection is the one that a window reads."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from analysis.cli import main
from analysis.source import read_sql
from exporters.clickhouse.database import open_database, parse_address
from exporters.clickhouse.schema import COLUMNS, FAST_TABLES, Layout, render_statements


@pytest.fixture
def database(tmp_path):
    database = open_database(parse_address(f"chdb:{tmp_path / 'db'}"), create=True)
    yield database
    database.close()


def test_single_node_statements_run_twice(database) -> None:
    for _ in range(2):
        for statement in render_statements(Layout()):
            database.command(statement)
    names = database.fetch("SELECT name FROM system.tables WHERE database = 'otel' ORDER BY name").column(0).to_pylist()
    fast = [f"{table}{end}" for table in FAST_TABLES for end in ("", "_mv")]
    stock = ["otel_traces", "otel_traces_trace_id_ts", "otel_traces_trace_id_ts_mv"]
    assert names == sorted(["kvlens_imports", *stock, *fast])


@pytest.mark.parametrize("cluster", ["{cluster}", "prod-1"])
def test_cluster_statements_parse(database, cluster: str) -> None:
    statements = render_statements(Layout("otel", 30, cluster))
    for statement in statements:
        ast = database.fetch(f"EXPLAIN AST {statement}")
        assert ast.num_rows > 0
        formatted = database.fetch(f"SELECT formatQuery($sql${statement}$sql$) AS sql").to_pylist()[0]["sql"]
        assert "ON CLUSTER" in formatted
    text = "\n".join(statements)
    assert "ReplicatedMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')" in text
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/all/" in text
    assert f"Distributed('{cluster}', otel, otel_traces_local, cityHash64(TraceId))" in text


def test_columns_are_those_of_the_embedded_table(database) -> None:
    for statement in render_statements(Layout()):
        database.command(statement)
    database.command(read_sql("otel_traces"), {"table": "embedded"})
    describe = (
        "SELECT name, type FROM system.columns WHERE database = 'otel' AND table = {table:String} ORDER BY position"
    )
    ours = database.fetch(describe, {"table": "otel_traces"}).to_pylist()
    assert ours == database.fetch(describe, {"table": "embedded"}).to_pylist()
    assert tuple(row["name"] for row in ours) == COLUMNS


def test_a_window_of_one_scope_reads_the_projection(database) -> None:
    for statement in render_statements(Layout(ttl_days=20_000)):
        database.command(statement)
    columns = "Timestamp, TraceId, SpanId, SpanName, ServiceName, ScopeName, Duration"
    database.command(
        f"INSERT INTO otel_traces ({columns}) SELECT toDateTime64('2026-01-01 00:00:00', 9, 'UTC') + number / 1000, "
        "toString(number), toString(number), 'x', concat('service-', toString(number % 50)), "
        "if(number % 20 = 0, 'kvlens', 'other'), 1 FROM numbers(500000)"
    )
    window = "Timestamp >= toDateTime64('2026-01-01 00:04:00', 9, 'UTC')"
    query = f"SELECT SpanName, Duration FROM otel_traces WHERE ScopeName = 'kvlens' AND {window}"
    plan = "\n".join(database.fetch(f"EXPLAIN indexes = 1, projections = 1 {query}").column(0).to_pylist())
    assert "kvlens_scope_time" in plan, plan


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="no database name"):
        Layout("otel; DROP TABLE x")
    with pytest.raises(ValueError, match="no cluster name"):
        Layout("otel", 14, "a b")
    done = CliRunner().invoke(main, ["load", "--ddl", "cluster", "--cluster", "x y"])
    assert done.exit_code == 2
    done = CliRunner().invoke(main, ["load", "--ddl", "cluster", "--ttl-days", "30"])
    assert done.exit_code == 0
    assert "toIntervalDay(30)" in done.output

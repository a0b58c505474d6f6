"""A collector writes spans into our tables by its own client, and the analysis reads them as it reads the files."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from span_builder import MS, Request, World, add_request, push_times

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.source import open_session
from analysis.sources import open_source
from exporters.clickhouse.database import open_database, parse_address
from exporters.clickhouse.schema import Layout, render_statements

IDS = ("traceId", "spanId", "parentSpanId")


def to_protobuf(line: str) -> bytes:
    """OTLP JSON writes ids in hexadecimal, protobuf's own JSON in base64."""
    document = json.loads(line)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span |= {name: base64.b64encode(bytes.fromhex(span[name])).decode() for name in IDS if span.get(name)}
    return ParseDict(document, ExportTraceServiceRequest()).SerializeToString()


def send(endpoint: str, path: Path) -> int:
    count = 0
    for file in sorted((path / "traces").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            headers = {"Content-Type": "application/x-protobuf"}
            with urllib.request.urlopen(urllib.request.Request(endpoint, to_protobuf(line), headers), timeout=30):
                count += len(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"])
    return count


def test_spans_that_a_collector_wrote_read_as_the_files_do(tmp_path, server, collector) -> None:
    pytest.importorskip("clickhouse_connect")
    world = World("push", ranks=2)
    for number in range(10):
        times, _ = push_times(number * 15 * MS, prefill_compute=40, wire=10)
        add_request(world, Request(f"r{number}"), times, slow_rank=number % 2, slow_ns=MS)
    world.write(tmp_path / "run" / "traces")
    with open_session([tmp_path / "run"]) as session:
        from_files = render_document(break_down(session))["requests"]
    target = f"clickhouse://{server}/otel"
    database = open_database(parse_address(target), create=True)
    for statement in render_statements(Layout("otel", 20_000)):
        database.command(statement)
    count = send(collector, tmp_path / "run")
    for _ in range(300):
        found = database.fetch("SELECT count() AS n FROM otel_traces").to_pylist()[0]["n"]
        if found >= count:
            break
        time.sleep(0.1)
    database.close()
    assert found == count, (tmp_path / "rotel.out").read_text()[-2000:]
    with open_source(target) as session:
        assert render_document(break_down(session))["requests"] == from_files

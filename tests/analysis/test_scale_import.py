"""Import: protobuf in every framing gives the rows of JSON lines, a killed load goes on, typed tables mirror it."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from analysis.batches import Batch
from analysis.breakdown import break_down
from analysis.load import load_files, prepare_target, read_pieces, repair_derived
from analysis.parsing import parse_ahead
from analysis.render.json import render_document
from analysis.run import find_run
from analysis.source import open_session, read_sql
from analysis.sources import find_fast_tables, open_source, read_address
from analysis.synthetic.parameters import Fault, Parameters
from analysis.synthetic.write import write_run
from exporters.clickhouse.database import open_database
from exporters.clickhouse.schema import FAST_TABLES, PROCESS, RESOURCE_KEYS, SPAN_IDS, name_resource, read_part

FIXTURE = Path(__file__).parents[1] / "fixtures" / "runs" / "push"
IDS = ("traceId", "spanId", "parentSpanId")
COMPARED = ("milestones", "routers", "handshakes", "messages", "readbacks", "health", "evidence", "steps")
PARAMETERS = {"one_in": 1}
"""Of the messages; chDB takes no offence at a parameter that a text does not have."""


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    faults = (Fault("wire", 200, 0.02), Fault("registration", 80, 0.02))
    write_run(Parameters(requests=400, prefill_engines=2, decode_engines=2, drop=0.02, kills=1, faults=faults), out)
    return out


def list_messages(run: Path) -> list[bytes]:
    """The lines of a run as protobuf: OTLP JSON writes ids in hexadecimal, protobuf's own JSON in base64."""
    import gzip

    messages = []
    for file in find_run([run]).files:
        text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
        for line in text.splitlines():
            document = json.loads(line)
            for resource in document["resourceSpans"]:
                for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                    span |= {n: base64.b64encode(bytes.fromhex(span[n])).decode() for n in IDS if span.get(n)}
            messages.append(ParseDict(document, ExportTraceServiceRequest()).SerializeToString())
    return messages


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def frame(messages: list[bytes], framing: str, folder: Path) -> None:
    folder.mkdir()
    if framing == "one per file":
        for number, message in enumerate(messages):
            (folder / f"{number:05}.pb").write_bytes(message)
    elif framing == "delimited":
        (folder / "spans.pb").write_bytes(b"".join(varint(len(m)) + m for m in messages))
    elif framing == "collector":
        (folder / "spans.pb").write_bytes(b"".join(struct.pack(">I", len(m)) + m for m in messages))
    else:
        packed = [pa.Codec("zstd").compress(m, asbytes=True) for m in messages]
        (folder / "spans.pb").write_bytes(b"".join(struct.pack(">I", len(m)) + m for m in packed))


def fetch_rows(session) -> dict[str, list[str]]:
    return {
        name: sorted(json.dumps(row, default=str) for row in session.query(name, **PARAMETERS).iter_rows(named=True))
        for name in COMPARED
    }


# A file costs an insert: half a minute for the messages of one run.
ONE_PER_FILE = pytest.param("one per file", marks=pytest.mark.slow)


@pytest.mark.parametrize("framing", [ONE_PER_FILE, "delimited", "collector", "collector, zstd"])
def test_protobuf_gives_the_rows_of_json_lines(tmp_path, framing: str) -> None:
    frame(list_messages(FIXTURE), framing, tmp_path / "pb")
    with open_session([FIXTURE]) as session:
        expected = fetch_rows(session)
    with open_session([tmp_path / "pb"]) as session:
        assert session.bad_lines == 0
        assert fetch_rows(session) == expected


def test_a_cut_off_message_is_counted_and_the_others_are_read(tmp_path) -> None:
    frame(list_messages(FIXTURE), "collector", tmp_path / "pb")
    path = tmp_path / "pb" / "spans.pb"
    path.write_bytes(path.read_bytes()[:-100])
    with open_session([path]) as session:
        assert session.bad_lines == 1
        assert session.query("health")["used_spans"][0] > 300


def test_lines_are_counted_where_they_are_parsed(synthetic, tmp_path) -> None:
    """A line that is cut off or no JSON is damaged, one without spans is none, and an empty one is no line at all."""
    whole = sorted((synthetic / "traces").iterdir())[0].read_text().splitlines(keepends=True)
    path = tmp_path / "some.otlp.jsonl"
    path.write_text(whole[0] + '{"resourceSpans":[]}\n\n' + "nonsense\n" + '{"other":1}\n' + whole[0][:200])
    address = read_address(f"chdb:{tmp_path / 'db'}")
    done = load_files((path,), address, 14)
    spans = len(json.loads(whole[0])["resourceSpans"][0]["scopeSpans"][0]["spans"])
    assert (done.lines, done.bad_lines, done.spans, done.new_spans) == (5, 2, spans, spans)
    nothing = tmp_path / "nothing.otlp.jsonl"
    nothing.write_text("{nonsense\n")
    done = load_files((nothing,), address, 14)
    assert (done.pieces, done.lines, done.bad_lines, done.spans) == (1, 1, 1, 0)


def test_a_file_that_is_a_piece_is_parsed_where_it_lies(synthetic, tmp_path, monkeypatch) -> None:
    """The same spans whether files are copied together or read in place."""
    files = find_run([synthetic]).files
    copied = load_files(files, read_address(f"chdb:{tmp_path / 'copied'}"), 14)
    monkeypatch.setattr("analysis.pieces.LINKED_BYTES", 1)
    linked = [piece.path for path in files for piece in read_pieces(path)]
    assert linked == list(files)
    placed = load_files(files, read_address(f"chdb:{tmp_path / 'placed'}"), 14)
    assert (placed.new_spans, placed.lines, placed.pieces) == (copied.new_spans, copied.lines, copied.pieces)


def test_what_is_asked_of_a_resource_has_a_column() -> None:
    """kvlens_arriving, filled by both imports, holds exactly what the typed tables look up."""
    parts = "".join(read_part(name.removeprefix("kvlens_")) for name in (*FAST_TABLES, SPAN_IDS))
    assert set(re.findall(r"ResourceAttributes\['([\w.]+)'\]", parts)) == set(RESOURCE_KEYS)
    for name in ("import_otlp_json", "import_otlp_protobuf"):
        assert re.findall(r"AS (Resource_\w+)", read_sql(name)) == [
            *map(name_resource, RESOURCE_KEYS),
            "Resource_process",
        ]
    for name in ("spans", "processes"):
        assert PROCESS in read_part(name)


def test_typed_tables_hold_what_their_sub_selects_say(synthetic) -> None:
    with open_session([synthetic]) as session:
        for table in FAST_TABLES:
            part = read_part(table.removeprefix("kvlens_"))
            columns = "* EXCEPT HeardAt" if table == "kvlens_processes" else "*"
            if table == "kvlens_counts":
                stored = (
                    "SELECT day, toString(boot) AS boot, ours, impossible, warmup, is_foreign, toString(name) AS name, "
                    "sum(n) FROM kvlens_counts GROUP BY ALL"
                )
            else:
                stored = f"SELECT DISTINCT {columns} FROM {table}"
            more = f"SELECT count() FROM ({stored} EXCEPT SELECT * FROM {part})"
            less = f"SELECT count() FROM (SELECT * FROM {part} EXCEPT {stored})"
            text = f"SELECT ({more}) + ({less})"
            found = session._database.query(text, "CSV", params={"table": "otel_traces"})
            assert int(str(found)) == 0, table


def test_both_paths_give_the_same_rows(synthetic) -> None:
    """The typed tables and the collector's table, by the same text."""
    with open_session([synthetic]) as session:
        for name in COMPARED:
            slow = session._database.query(read_sql(name), "ArrowTable", params={"table": "otel_traces", **PARAMETERS})
            fast = session.query(name, **PARAMETERS)
            order = sorted(json.dumps(row, default=str) for row in slow.to_pylist())
            assert order == sorted(json.dumps(row, default=str) for row in fast.to_arrow().to_pylist()), name


@pytest.mark.slow
def test_a_killed_load_goes_on(synthetic, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'db'}"
    code = (
        "import sys; from pathlib import Path; from analysis.load import load_files; from analysis.run import find_run;"
        "from analysis.sources import read_address;"
        f"load_files(find_run([Path({str(synthetic)!r})]).files, read_address({target!r}), 14, size=100_000,"
        " progress=lambda done: print(done.new_spans, flush=True))"
    )
    loader = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert loader.stdout is not None
    for _ in range(4):
        loader.stdout.readline()
    time.sleep(0.05)
    os.kill(loader.pid, signal.SIGKILL)
    loader.wait()
    files = find_run([synthetic]).files
    done = load_files(files, read_address(target), 14, size=100_000)
    assert done.skipped >= 4
    with open_session([synthetic]) as session:
        expected, document = fetch_rows(session), render_document(break_down(session))
    with open_source(target) as session:
        assert session.fast == frozenset(FAST_TABLES)
        assert fetch_rows(session) == expected
        assert render_document(break_down(session))["requests"] == document["requests"]
    assert load_files(files, read_address(target), 14, size=100_000).new_spans == 0


def test_what_a_kill_left_apart_is_repaired(synthetic, tmp_path) -> None:
    address = read_address(f"chdb:{tmp_path / 'db'}")
    load_files(find_run([synthetic]).files, address, 14)
    database = open_database(address)
    try:
        assert find_fast_tables(database, address)
        assert not repair_derived(database)
        database.command("TRUNCATE TABLE kvlens_spans")
        assert not find_fast_tables(database, address)
        assert repair_derived(database)
        assert find_fast_tables(database, address)
    finally:
        database.close()


def test_the_next_batch_is_parsed_while_one_is_stored(tmp_path) -> None:
    """One ahead and no more, and never into the table that is being stored."""
    parsed: list[tuple[str, str]] = []

    class Recorder:
        def parse(self, batch: Batch, table: str) -> tuple[int, int]:
            parsed.append((batch.pattern, table))
            return 1, 0

    @dataclass
    class Named:
        pattern: str
        lines: tuple[int, ...] = ()

    batches = [Named(str(number)) for number in range(5)]
    taken = []
    for found in parse_ahead(iter(batches), Recorder(), ["even", "odd"]):
        assert len(parsed) <= len(taken) + 2
        assert found.table == ("even", "odd")[len(taken) % 2]
        taken.append(found.batch.pattern)
    assert taken == [batch.pattern for batch in batches]
    assert parsed == [(str(number), ("even", "odd")[number % 2]) for number in range(5)]


def test_nothing_is_merged_while_spans_are_loaded_into_a_new_database(tmp_path) -> None:
    address = read_address(f"chdb:{tmp_path / 'spans'}")
    database = open_database(address, create=True)
    try:
        prepare_target(database, address, 14)
        for number in range(2):
            database.command(f"INSERT INTO kvlens_span_ids VALUES ({number}, 1, 1)")
        with pytest.raises(Exception, match="ancelled"):
            database.command("OPTIMIZE TABLE kvlens_span_ids FINAL")
    finally:
        database.close()

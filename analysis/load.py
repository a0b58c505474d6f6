"""Store span files in a database, piece by piece, so that a load can be stopped, resumed and repeated.

A piece is some whole messages of a file (pieces.py). Its digest is recorded once its spans are stored; a recorded piece
is skipped. A piece that was stored but not recorded (the loader died in between), or that a collector has delivered as
well, is told by its span ids: only spans that the table does not have are inserted. Parsing is chDB's for every target.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from exporters.clickhouse.database import Address, EmbeddedDatabase, ServerDatabase
from exporters.clickhouse.schema import (
    COLUMNS,
    FAST_TABLES,
    IMPORTS,
    KEEP_DAYS,
    SPAN_IDS,
    Layout,
    read_part,
    render_embedded_statements,
    render_statements,
)

from .errors import KvlensError
from .pieces import PIECE_BYTES, PROTOBUF, Piece, keep_schema_aside, read_pieces
from .source import read_sql
from .sources import connect

__all__ = ["Loaded", "load_files", "read_pieces"]

BATCH_PIECES = 3
"""Pieces' worth of bytes that are stored together: some 270,000 spans, 600 MB on their way through."""
SPEED_SETTINGS = ("max_insert_threads = 2", "parallel_view_processing = 1", "materialized_views_ignore_errors = 0")
"""Of an embedded target: both cores write, and the views of a block run side by side."""


@dataclass
class Loaded:
    """What a load did: pieces stored and skipped, lines, spans found and those of them that were new.

    bytes: of the messages that were read, uncompressed.
    """

    pieces: int = 0
    skipped: int = 0
    lines: int = 0
    bad_lines: int = 0
    spans: int = 0
    new_spans: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)


def load_files(
    files: tuple[Path, ...],
    address: Address,
    ttl_days: int,
    progress: Callable[[Loaded], None] = lambda _: None,
    size: int = PIECE_BYTES,
) -> Loaded:
    """Store the spans of some files at an address, whose tables are made if they are missing.

    ttl_days: retention of a server's tables when they are made; embedded ones keep everything. progress: told after
    every piece. Raises KvlensError when the target cannot be opened or refuses.
    """
    result = Loaded(files=[path.name for path in files])
    with ExitStack() as stack:
        database = connect(address, create=True)
        stack.callback(database.close)
        try:
            stage: Stage = prepare_target(database, address, ttl_days)
            known = set(database.fetch(f"SELECT Digest FROM {IMPORTS} FINAL").column(0).to_pylist())
            stack.enter_context(stage)
            for batch in gather_pieces(files, known, size, result):
                stage.store(batch, result)
                progress(result)
        except KvlensError:
            raise
        except Exception as error:
            raise KvlensError(
                f"{address.shown} refused: {str(error).strip().splitlines()[0][:300]}",
                "say the same again: a load goes on where it stopped",
            ) from error
    return result


def gather_pieces(files: tuple[Path, ...], known: set[str], size: int, result: Loaded) -> Iterator[list[Piece]]:
    """Yield the pieces that are not known yet, small ones together: storing has a price per statement."""
    batch: list[Piece] = []
    held = 0
    for path in files:
        for piece in read_pieces(path, size):
            result.bytes += len(piece.data)
            digest = piece.digest
            if digest in known:
                result.skipped += 1
                continue
            known.add(digest)
            if batch and (held + len(piece.data) > BATCH_PIECES * size or piece.kind != batch[0].kind):
                yield batch
                batch, held = [], 0
            batch.append(piece)
            held += len(piece.data)
    if batch:
        yield batch


def prepare_target(database: Any, address: Address, ttl_days: int) -> Stage:
    """Make the tables that are missing and what stores pieces in them."""
    if not isinstance(database, EmbeddedDatabase):
        for statement in render_statements(Layout(address.database, ttl_days)):
            database.command(statement)
        return Stage(database, address)
    # Merging would take the cores from the load; it is made up for whenever the database is open.
    database.command("SYSTEM STOP MERGES")
    for setting in SPEED_SETTINGS:
        database.command(f"SET {setting}")
    database.command(read_sql("otel_traces"), {"table": address.table})
    if address.table != "otel_traces":
        return Stage(database, address, makes_tables=True)
    for statement in render_embedded_statements(Layout(address.database, KEEP_DAYS)):
        database.command(statement)
    repair_derived(database)
    return EmbeddedStage(database, address)


def repair_derived(database: Any) -> bool:
    """Fill what views derive from otel_traces again where a killed load left them apart; returns whether it did.

    A block reaches the table and the tables of its views one after the other, so that a kill can come in between.
    """
    counts = database.fetch(
        f"SELECT (SELECT count() FROM otel_traces) AS stored, (SELECT toUInt64(sum(n)) FROM kvlens_counts) AS counted, "
        f"(SELECT count() FROM {SPAN_IDS}) AS known, (SELECT count() FROM kvlens_spans) AS typed, "
        "(SELECT toUInt64(sumIf(n, ours AND NOT impossible AND NOT warmup)) FROM kvlens_counts) AS ours"
    ).to_pylist()[0]
    if counts["stored"] == counts["counted"] == counts["known"] and counts["typed"] == counts["ours"]:
        return False
    for table in (*FAST_TABLES, SPAN_IDS):
        select = read_part(table.removeprefix("kvlens_"))
        database.command(f"TRUNCATE TABLE {table}")
        names = database.fetch(f"DESCRIBE {select}", {"table": "otel_traces"})["name"].to_pylist()
        database.command(f"INSERT INTO {table} ({', '.join(names)}) SELECT * FROM {select}", {"table": "otel_traces"})
    return True


class Stage:
    """A table of its own beside the target, where a piece is parsed and compared before it is stored."""

    def __init__(self, database: Any, address: Address, *, makes_tables: bool = False) -> None:
        self._database = database
        self._table = address.table
        self._name = f"kvlens_stage_{uuid4().hex}"
        self._columns = ", ".join(f"`{name}`" for name in COLUMNS)
        self._scratch: Any = None
        if makes_tables:
            for statement in render_embedded_statements(Layout(address.database, KEEP_DAYS)):
                if IMPORTS in statement:
                    database.command(statement)

    def __enter__(self) -> Stage:
        for name in (self._name, f"{self._name}_new"):
            self._database.command(f"CREATE TABLE {name} AS {self._table} ENGINE = Memory")
        if isinstance(self._database, ServerDatabase):
            self._scratch = _Scratch()
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self._name, f"{self._name}_new"):
            self._database.command(f"DROP TABLE IF EXISTS {name}")
        if self._scratch is not None:
            self._scratch.close()

    def store(self, batch: list[Piece], result: Loaded) -> None:
        """Store what is new of some pieces of one kind and record them (Spans: of all pieces stored together)."""
        lines, bad = self._parse_batch(batch)
        spans, new = self._insert()
        columns = {
            "digests": [piece.digest for piece in batch], "files": [piece.file for piece in batch],
            "positions": [piece.position for piece in batch],
            "lines": [piece.messages or piece.data.count(b"\n") for piece in batch],
        }  # fmt: skip
        self._database.command(
            f"INSERT INTO {IMPORTS} (Digest, File, Position, Lines, Spans) SELECT d, f, p, l, {spans} FROM (SELECT 1) "
            "ARRAY JOIN JSONExtract({digests:String}, 'Array(String)') AS d, "
            "JSONExtract({files:String}, 'Array(String)') AS f, JSONExtract({positions:String}, 'Array(UInt64)') AS p, "
            "JSONExtract({lines:String}, 'Array(UInt64)') AS l",
            {name: json.dumps(values) for name, values in columns.items()},
        )
        for name in (self._name, f"{self._name}_new"):
            self._database.command(f"TRUNCATE TABLE {name}")
        result.pieces += len(batch)
        result.lines += lines
        result.bad_lines += bad
        result.spans += spans
        result.new_spans += new

    def _parse_batch(self, batch: list[Piece]) -> tuple[int, int]:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            for piece in batch:
                file.write(piece.data)
                if piece.kind != PROTOBUF and not piece.data.endswith(b"\n"):
                    file.write(b"\n")
            file.flush()
            lines, bad = self._parse(file.name, batch[0].kind) if file.tell() else (0, 0)
        messages, damaged = sum(piece.messages for piece in batch), sum(piece.damaged for piece in batch)
        return (messages, damaged) if messages else (lines, bad)

    def _insert(self) -> tuple[int, int]:
        """Insert the staged spans that the target does not have; returns how many there are, and how many were new."""
        self._database.command(
            f"INSERT INTO {self._name}_new ({self._columns}) SELECT {self._columns} FROM {self._name} "
            f"WHERE (TraceId, SpanId) NOT IN (SELECT TraceId, SpanId FROM {self._table} "
            f"WHERE Timestamp >= (SELECT min(Timestamp) FROM {self._name}) "
            f"AND Timestamp <= (SELECT max(Timestamp) FROM {self._name})) LIMIT 1 BY TraceId, SpanId"
        )
        counts = self._database.fetch(
            f"SELECT (SELECT count() FROM {self._name}) AS spans, (SELECT count() FROM {self._name}_new) AS new"
        ).to_pylist()[0]
        self._database.command(
            f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns} FROM {self._name}_new"
        )
        return int(counts["spans"]), int(counts["new"])

    def _parse(self, path: str, kind: str) -> tuple[int, int]:
        if self._scratch is not None:
            lines, bad, rows = self._scratch.parse(path, kind)
            self._database.insert(self._name, rows)
            return lines, bad
        return _parse_into(self._database.fetch, self._database.command, self._name, path, kind)


class EmbeddedStage(Stage):
    """Told by a small table of span ids, sorted by process and time, what the target has: mostly nothing of a piece."""

    def _insert(self) -> tuple[int, int]:
        ids = read_part("span_ids").replace("{table:Identifier}", self._name)
        known = (
            f"SELECT span FROM {SPAN_IDS} WHERE process IN (SELECT process FROM {ids}) "
            f"AND at >= (SELECT min(at) FROM {ids}) AND at <= (SELECT max(at) FROM {ids})"
        )
        row = self._database.fetch(
            "SELECT count() AS spans, uniqExact(span) AS different, "
            f"uniqExactIf(span, span IN ({known})) AS there FROM {ids}"
        ).to_pylist()[0]
        spans, different = int(row["spans"]), int(row["different"])
        if spans == different and not row["there"]:
            self._database.command(
                f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns} FROM {self._name}"
            )
            return spans, spans
        if new := different - int(row["there"]):
            self._database.command(
                f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns} FROM {self._name} "
                f"WHERE cityHash64(TraceId, SpanId) NOT IN ({known}) LIMIT 1 BY TraceId, SpanId"
            )
        return spans, new


class _Scratch:
    """A chDB of this process that parses for a server: the server cannot see our files."""

    def __init__(self) -> None:
        from chdb import session

        self._directory = tempfile.TemporaryDirectory(prefix="kvlens-load-")
        self._session = session.Session(self._directory.name)
        self._session.query(read_sql("otel_traces"), params={"table": "scratch"})

    def parse(self, path: str, kind: str) -> tuple[int, int, Any]:
        """Return lines, damaged lines and the spans as a pyarrow table."""
        lines, bad = _parse_into(
            self._fetch, lambda sql, params: self._session.query(sql, params=params), "scratch", path, kind
        )
        rows = self._fetch("SELECT * FROM scratch", {})
        self._session.query("TRUNCATE TABLE scratch")
        return lines, bad, rows

    def close(self) -> None:
        self._session.close()
        self._directory.cleanup()

    def _fetch(self, sql: str, params: dict[str, Any]) -> Any:
        return self._session.query(sql, "ArrowTable", params=params)


def _parse_into(fetch: Any, command: Any, table: str, path: str, kind: str) -> tuple[int, int]:
    if kind == PROTOBUF:
        with keep_schema_aside():
            command(read_sql("import_otlp_protobuf"), {"table": table, "path": path})
        return 0, 0
    counts = fetch(read_sql("count_lines"), {"path": path}).to_pylist()[0]
    command(read_sql("import_otlp_json"), {"table": table, "path": path})
    return int(counts["lines"]), int(counts["bad_lines"])

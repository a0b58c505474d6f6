"""Store span files in a database, piece by piece, so that a load can be stopped, resumed and repeated.

A piece is some whole messages of a file (pieces.py). Its digest is recorded once its spans are stored; a recorded piece
is skipped. A piece that was stored but not recorded (the loader died in between), or that a collector has delivered as
well, is told by its span ids: only spans that the table does not have are inserted. Parsing is chDB's for every target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from exporters.clickhouse.database import Address, EmbeddedDatabase
from exporters.clickhouse.schema import (
    ARRIVING,
    COLUMNS,
    FAST_TABLES,
    IMPORTS,
    KEEP_DAYS,
    SPAN_IDS,
    TRACES,
    Layout,
    read_arriving_part,
    read_part,
    render_arriving,
    render_embedded_statements,
    render_statements,
)

from .answers import keep_answers
from .batches import gather_batches, read_ahead
from .errors import KvlensError
from .parsing import EmbeddedParser, Parsed, Parser, ServerParser, parse_ahead
from .pieces import PIECE_BYTES, read_pieces
from .source import read_sql
from .sources import connect

__all__ = ["Loaded", "load_files", "read_pieces"]

SPEED_SETTINGS = (
    "max_insert_threads = 2",
    "parallel_view_processing = 1",
    "materialized_views_ignore_errors = 0",
    "input_format_max_block_size_bytes = 8000000",
)
"""Of an embedded target: both cores write, the views of a block run side by side, and a file is parsed by parts."""
STAGES = 2
"""One is stored while the next is parsed."""
MERGED_PARTS = 300
"""Parts of a table, above which they are merged: 10 million spans have 35 of them."""


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
            make_stage = prepare_target(database, address, ttl_days)
            known = set(database.fetch(f"SELECT Digest FROM {IMPORTS} FINAL").column(0).to_pylist())
            stages = {stage.name: stage for stage in (make_stage(database, address) for _ in range(STAGES))}
            for stage in stages.values():
                stack.enter_context(stage)
            parser = stack.enter_context(open_parser(database, address))
            batches = read_ahead(gather_batches(tuple(path.absolute() for path in files), known, size))
            for parsed in stack.enter_context(closing(parse_ahead(batches, parser, list(stages)))):
                stages[parsed.table].store(parsed, result)
                progress(result)
            if make_stage is EmbeddedStage:
                keep_answers(database)
        except KvlensError:
            raise
        except Exception as error:
            raise KvlensError(
                f"{address.shown} refused: {str(error).strip().splitlines()[0][:300]}",
                "say the same again: a load goes on where it stopped",
            ) from error
    return result


def open_parser(database: Any, address: Address) -> AbstractContextManager[Parser]:
    """Open what parses files into a stage of a target."""
    if not isinstance(database, EmbeddedDatabase):
        return ServerParser(database)
    connection = connect(address)
    set_speed(connection)
    return EmbeddedParser(connection)


def set_speed(database: Any) -> None:
    """Apply the settings of an embedded target to a connection."""
    for setting in SPEED_SETTINGS:
        database.command(f"SET {setting}")


def prepare_target(database: Any, address: Address, ttl_days: int) -> type[Stage]:
    """Make the tables that are missing; returns what stores pieces in them."""
    if not isinstance(database, EmbeddedDatabase):
        for statement in render_statements(Layout(address.database, ttl_days)):
            database.command(statement)
        return Stage
    set_speed(database)
    database.command(read_sql("otel_traces"), {"table": address.table})
    statements = render_embedded_statements(Layout(address.database, KEEP_DAYS))
    if address.table != TRACES:
        database.command(next(text for text in statements if IMPORTS in text))
        return Stage
    for statement in statements:
        database.command(statement)
    spare_merges(database)
    repair_derived(database)
    return EmbeddedStage


def spare_merges(database: Any) -> None:
    """Let nothing be merged while spans are loaded: merging would take a core from it.

    The statement holds for tables that are there, hence after they are made. The parts of many small loads are merged,
    before an insert is refused since there are too many of them (thousands).
    """
    parts = database.fetch("SELECT count() AS n FROM system.parts WHERE active GROUP BY table ORDER BY n DESC LIMIT 1")
    if parts.num_rows == 0 or parts["n"][0].as_py() < MERGED_PARTS:
        database.command("SYSTEM STOP MERGES")


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
    """A table of its own beside the target, where a batch is parsed and compared before it is stored."""

    def __init__(self, database: Any, address: Address) -> None:
        self._database = database
        self._table = address.table
        self.name = f"kvlens_stage_{uuid4().hex}"
        self._columns = ", ".join(f"`{name}`" for name in COLUMNS)

    def __enter__(self) -> Stage:
        self._database.command(render_arriving(self.name, self._table, "Memory"))
        return self

    def __exit__(self, *_: object) -> None:
        self._database.command(f"DROP TABLE IF EXISTS {self.name}")

    def store(self, parsed: Parsed, result: Loaded) -> None:
        """Store what is new of some parsed pieces and record them (Spans: of all pieces stored together)."""
        batch = parsed.batch
        result.bytes += batch.read
        result.skipped += batch.skipped
        if not batch.digests:
            return
        spans, new = self._insert()
        self._database.command(f"TRUNCATE TABLE {self.name}")
        columns = {
            "digests": batch.digests, "files": batch.files, "positions": batch.positions, "lines": batch.lines,
        }  # fmt: skip
        self._database.command(
            f"INSERT INTO {IMPORTS} (Digest, File, Position, Lines, Spans) SELECT d, f, p, l, {spans} FROM (SELECT 1) "
            "ARRAY JOIN JSONExtract({digests:String}, 'Array(String)') AS d, "
            "JSONExtract({files:String}, 'Array(String)') AS f, JSONExtract({positions:String}, 'Array(UInt64)') AS p, "
            "JSONExtract({lines:String}, 'Array(UInt64)') AS l",
            {name: json.dumps(values) for name, values in columns.items()},
        )
        result.pieces += len(batch.digests)
        result.lines += parsed.lines
        result.bad_lines += parsed.bad_lines + batch.damaged
        result.spans += spans
        result.new_spans += new

    def _insert(self) -> tuple[int, int]:
        """Insert the staged spans that the target does not have; returns how many there are, and how many were new."""
        new = (
            f"FROM {self.name} WHERE (TraceId, SpanId) NOT IN (SELECT TraceId, SpanId "
            f"FROM {self._table} WHERE Timestamp >= (SELECT min(Timestamp) FROM {self.name}) "
            f"AND Timestamp <= (SELECT max(Timestamp) FROM {self.name}))"
        )
        counts = self._database.fetch(
            f"SELECT (SELECT count() FROM {self.name}) AS spans, (SELECT uniqExact(TraceId, SpanId) {new}) AS new"
        ).to_pylist()[0]
        self._database.command(
            f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns} {new} LIMIT 1 BY TraceId, SpanId"
        )
        return int(counts["spans"]), int(counts["new"])


class EmbeddedStage(Stage):
    """Told by a small table of span ids, sorted by process and time, what the target has: mostly nothing of a batch."""

    def _insert(self) -> tuple[int, int]:
        ids = read_arriving_part("span_ids", self.name)
        staged = self._database.fetch(
            "SELECT count() AS spans, uniqExact(span) AS different, min(at) AS first, max(at) AS last, "
            f"toString(groupUniqArray(process)) AS processes FROM {ids}"
        ).to_pylist()[0]
        if not staged["spans"]:
            return 0, 0
        there = (
            f"FROM {SPAN_IDS} WHERE process IN {staged['processes']} "
            f"AND at >= {staged['first']} AND at <= {staged['last']}"
        )
        known = self._database.fetch(
            f"SELECT uniqExact(span) AS n {there} AND span IN (SELECT span FROM {ids})"
        ).to_pylist()[0]["n"]
        spans, different = int(staged["spans"]), int(staged["different"])
        everything = f"INSERT INTO {ARRIVING} SELECT * FROM {self.name}"
        if spans == different and not known:
            self._database.command(everything)
        elif different > known:
            self._database.command(
                f"{everything} WHERE cityHash64(TraceId, SpanId) NOT IN (SELECT span {there}) "
                "LIMIT 1 BY TraceId, SpanId"
            )
        return spans, different - int(known)

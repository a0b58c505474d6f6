"""Store span files in a database, piece by piece, so that a load can be stopped, resumed and repeated.

A piece is some whole lines of a file. Its digest is recorded once its spans are stored; a recorded piece is skipped. A
piece that was stored but not recorded (the loader died in between), or that a collector has delivered as well, is told
by its span ids: only spans that the table does not have are inserted. Parsing is chDB's, for both kinds of target.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from exporters.clickhouse.database import Address, ServerDatabase
from exporters.clickhouse.schema import COLUMNS, IMPORTS, Layout, render_statements

from .errors import KvlensError
from .source import read_sql
from .sources import connect

PIECE_BYTES = 32 * 1024 * 1024
"""Bytes of lines stored at once: about 50,000 spans, which take some 200 MB on their way through."""


@dataclass(frozen=True)
class Piece:
    """Some whole lines of one file."""

    file: str
    position: int
    data: bytes

    @property
    def digest(self) -> str:
        """Digest of the bytes: the same lines are the same piece whatever the file is called."""
        return blake2b(self.data, digest_size=16).hexdigest()


@dataclass
class Loaded:
    """What a load did: pieces stored and skipped, lines, spans found and those of them that were new."""

    pieces: int = 0
    skipped: int = 0
    lines: int = 0
    bad_lines: int = 0
    spans: int = 0
    new_spans: int = 0
    files: list[str] = field(default_factory=list)


def read_pieces(path: Path, size: int = PIECE_BYTES) -> Iterator[Piece]:
    """Cut a span file (also .gz or .zst) into pieces of whole lines."""
    import pyarrow as pa

    position = 0
    with pa.input_stream(str(path), compression="detect") as stream, io.BufferedReader(stream) as reader:
        while data := reader.read(size):
            data += reader.readline()
            yield Piece(path.name, position, data)
            position += len(data)


def load_files(
    files: tuple[Path, ...],
    address: Address,
    ttl_days: int,
    progress: Callable[[str], None] = lambda _: None,
    size: int = PIECE_BYTES,
) -> Loaded:
    """Store the spans of some files at an address, whose tables are made if they are missing.

    Raises KvlensError when the target cannot be opened or refuses.
    """
    result = Loaded(files=[path.name for path in files])
    with ExitStack() as stack:
        database = connect(address, create=True)
        stack.callback(database.close)
        try:
            for statement in render_statements(Layout(address.database, ttl_days)):
                database.command(statement)
            known = set(database.fetch(f"SELECT Digest FROM {IMPORTS} FINAL").column(0).to_pylist())
            stage = stack.enter_context(Stage(database, address))
            for path in files:
                for piece in read_pieces(path, size):
                    if piece.digest in known:
                        result.skipped += 1
                        continue
                    known.add(piece.digest)
                    stage.store(piece, result)
                    progress(f"{path.name}: {result.new_spans} new of {result.spans} spans")
        except KvlensError:
            raise
        except Exception as error:
            raise KvlensError(
                f"{address.shown} refused: {str(error).strip().splitlines()[0][:300]}",
                "say the same again: a load goes on where it stopped",
            ) from error
    return result


class Stage:
    """A table of its own beside the target, where a piece is parsed and compared before it is stored."""

    def __init__(self, database: Any, address: Address) -> None:
        self._database = database
        self._table = address.table
        self._name = f"kvlens_stage_{uuid4().hex}"
        self._scratch: Any = None

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

    def store(self, piece: Piece, result: Loaded) -> None:
        """Store what is new of a piece and record it."""
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            file.write(piece.data)
            file.flush()
            lines, bad = self._parse(file.name)
        columns = ", ".join(f"`{name}`" for name in COLUMNS)
        self._database.command(
            f"INSERT INTO {self._name}_new ({columns}) SELECT {columns} FROM {self._name} "
            f"WHERE (TraceId, SpanId) NOT IN (SELECT TraceId, SpanId FROM {self._table} "
            f"WHERE Timestamp >= (SELECT min(Timestamp) FROM {self._name}) "
            f"AND Timestamp <= (SELECT max(Timestamp) FROM {self._name})) LIMIT 1 BY TraceId, SpanId"
        )
        counts = self._database.fetch(
            f"SELECT (SELECT count() FROM {self._name}) AS spans, (SELECT count() FROM {self._name}_new) AS new"
        ).to_pylist()[0]
        self._database.command(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {self._name}_new")
        self._database.command(
            f"INSERT INTO {IMPORTS} (Digest, File, Position, Lines, Spans) "
            "SELECT {digest:String}, {file:String}, {position:UInt64}, {lines:UInt64}, {spans:UInt64}",
            {
                "digest": piece.digest, "file": piece.file, "position": piece.position, "lines": lines,
                "spans": counts["spans"],
            },
        )  # fmt: skip
        for name in (self._name, f"{self._name}_new"):
            self._database.command(f"TRUNCATE TABLE {name}")
        result.pieces += 1
        result.lines += lines
        result.bad_lines += bad
        result.spans += int(counts["spans"])
        result.new_spans += int(counts["new"])

    def _parse(self, path: str) -> tuple[int, int]:
        if self._scratch is not None:
            lines, bad, rows = self._scratch.parse(path)
            self._database.insert(self._name, rows)
            return lines, bad
        return _parse_into(self._database.fetch, self._database.command, self._name, path)


class _Scratch:
    """A chDB of this process that parses for a server: the server cannot see our files."""

    def __init__(self) -> None:
        from chdb import session

        self._directory = tempfile.TemporaryDirectory(prefix="kvlens-load-")
        self._session = session.Session(self._directory.name)
        self._session.query(read_sql("otel_traces"), params={"table": "scratch"})

    def parse(self, path: str) -> tuple[int, int, Any]:
        """Return lines, damaged lines and the spans as a pyarrow table."""
        lines, bad = _parse_into(
            self._fetch, lambda sql, params: self._session.query(sql, params=params), "scratch", path
        )
        rows = self._fetch("SELECT * FROM scratch", {})
        self._session.query("TRUNCATE TABLE scratch")
        return lines, bad, rows

    def close(self) -> None:
        self._session.close()
        self._directory.cleanup()

    def _fetch(self, sql: str, params: dict[str, Any]) -> Any:
        return self._session.query(sql, "ArrowTable", params=params)


def _parse_into(fetch: Any, command: Any, table: str, path: str) -> tuple[int, int]:
    counts = fetch(read_sql("count_lines"), {"path": path}).to_pylist()[0]
    command(read_sql("import_otlp_json"), {"table": table, "path": path})
    return int(counts["lines"]), int(counts["bad_lines"])

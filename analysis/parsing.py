"""Parse batches of span files into a table of a target, one batch ahead of what is stored.

Parsing is chDB's for every target: a server cannot see our files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

from exporters.clickhouse.schema import render_arriving

from .batches import Batch
from .pieces import PROTOBUF, keep_schema_aside
from .source import read_sql


@dataclass(frozen=True)
class Parsed:
    """A batch, the table that it is in, its lines and how many of them were damaged."""

    batch: Batch
    table: str
    lines: int
    bad_lines: int


class Parser(Protocol):
    """What brings a batch into a table like kvlens_arriving."""

    def parse(self, batch: Batch, table: str) -> tuple[int, int]:
        """Parse files into a table; returns lines and how many of them were damaged."""


def parse_ahead(batches: Iterator[Batch], parser: Parser, tables: Sequence[str]) -> Generator[Parsed, None, None]:
    """Yield batches, each in one of the tables by turns, while a thread parses the next one into another table.

    Parsing keeps all cores busy, storing a little more than one of two: beside each other they leave none idle. Whoever
    takes a batch has emptied its table before asking for the one that comes after the next.
    """
    turns = cycle(tables)

    def parse_next() -> Parsed | None:
        if (batch := next(batches, None)) is None:
            return None
        table = next(turns)
        return Parsed(batch, table, *(parser.parse(batch, table) if batch.pattern else (sum(batch.lines), 0)))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(parse_next)
        while (parsed := coming.result()) is not None:
            coming = pool.submit(parse_next)
            yield parsed


class EmbeddedParser:
    """Parses in the target itself, by a connection of its own: the statements of one connection wait for each other."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> EmbeddedParser:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def parse(self, batch: Batch, table: str) -> tuple[int, int]:
        """Parse files into a table; returns lines and how many of them were damaged."""
        return parse_batch(self._connection.command, self._connection.fetch, table, batch)


class ServerParser:
    """Parses in a chDB of this process and sends the rows: the server cannot see our files."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __enter__(self) -> ServerParser:
        from chdb import session

        self._directory = tempfile.TemporaryDirectory(prefix="kvlens-load-")
        self._session = session.Session(self._directory.name)
        self._session.query(read_sql("otel_traces"), params={"table": "shape"})
        self._session.query(render_arriving("scratch", "shape", "Memory"))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._directory.cleanup()

    def parse(self, batch: Batch, table: str) -> tuple[int, int]:
        """Parse files into a table; returns lines and how many of them were damaged."""
        counts = parse_batch(self._fetch, self._fetch, "scratch", batch)
        self._database.insert(table, self._fetch("SELECT * FROM scratch", {}))
        self._session.query("TRUNCATE TABLE scratch")
        return counts

    def _fetch(self, sql: str, params: dict[str, Any]) -> Any:
        return self._session.query(sql, "ArrowTable", params=params)


def parse_batch(command: Any, fetch: Any, table: str, batch: Batch) -> tuple[int, int]:
    """Parse a batch into a table like kvlens_arriving; returns lines and how many of them were damaged.

    Where every line gave spans none was damaged. Only else they are read once more, to tell damaged from empty ones.
    """
    values, lines = {"table": table, "path": batch.pattern}, sum(batch.lines)
    if batch.kind == PROTOBUF:
        with keep_schema_aside():
            command(read_sql("import_otlp_protobuf"), values)
        return lines, 0
    command(read_sql("import_otlp_json"), values)
    if fetch(f"SELECT uniqExact(Line) AS n FROM {table}", {})["n"][0].as_py() == lines:
        return lines, 0
    row = fetch(read_sql("count_lines"), {"path": batch.pattern}).to_pylist()[0]
    return int(row["lines"]), int(row["bad_lines"])

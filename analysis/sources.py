"""Open a database that already holds spans (chDB directory or ClickHouse server) as the Session that commands query."""

from __future__ import annotations

from typing import Any

import polars as pl

from exporters.clickhouse.database import Address, is_address, open_database, parse_address

from .answers import find_answers
from .errors import KvlensError
from .run import Run
from .source import EVERY_FAST_TABLE, STOP_MERGES, TABLE, Session, read_sql

__all__ = ["SourceSession", "is_address", "open_source"]


class SourceSession(Session):
    """The spans of a database, as `analysis.source.Session` offers those of a run; nothing is written.

    run: name of the source, without files or conditions. lines, bad_lines: always 0, the lines were read by a loader.
    """

    def __init__(self, address: Address) -> None:
        self.run = Run(name=address.shown, files=())
        self.lines = 0
        self.bad_lines = 0
        self._table = address.table
        self._database = connect(address)
        if address.scheme == "chdb":
            self._database.command(STOP_MERGES)
        self.fast = find_fast_tables(self._database, address)
        whole = address.scheme == "chdb" and not address.filter and self.fast == EVERY_FAST_TABLE
        self.answers = find_answers(self._database, self._count_spans()) if whole else {}

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def query(self, name: str, **params: Any) -> pl.DataFrame:
        """Run analysis/sql/<name>.sql and return its rows; params fill the {placeholders} of the text."""
        kept = self.answers.get(name)
        text = f"SELECT * FROM {kept}" if kept else read_sql(name, fast=self.fast)
        try:
            table = self._database.fetch(text, {"table": self._table, **params})
        except Exception as error:
            raise KvlensError(
                f"{self.run.name} cannot answer {name}.sql: {_shorten(error)}",
                "kvlens load RUN --to ... makes the tables; ?table=NAME names another, ?database=NAME another database",
            ) from error
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _count_spans(self) -> int:
        return int(self._database.fetch(f"SELECT count() AS n FROM {self._table}")["n"][0].as_py())


def find_fast_tables(database: Any, address: Address) -> frozenset[str]:
    """Find the typed tables that can be read instead of the collector's: those that hold every span of it.

    Views see only what arrives after them, so a fleet that made them later is read from the collector's table until
    what was there before has expired.
    """
    if address.table != TABLE:
        return frozenset()
    everything = "SETTINGS additional_table_filters = {}"
    try:
        counts = database.fetch(
            f"SELECT (SELECT count() FROM {TABLE}) AS stored, (SELECT count() FROM kvlens_spans) AS typed, "
            "toUInt64(sum(n)) AS counted, toUInt64(sumIf(n, ours AND NOT impossible AND NOT warmup)) AS ours "
            f"FROM kvlens_counts {everything}"
        ).to_pylist()[0]
    except Exception:  # no such tables: a collector's own, or one of an earlier version
        return frozenset()
    if counts["counted"] != counts["stored"] or counts["typed"] != counts["ours"]:
        return frozenset()
    # Counts are kept by the day, a window is more exact.
    return EVERY_FAST_TABLE - ({"kvlens_counts"} if address.filter else set())


def connect(address: Address, *, create: bool = False) -> Any:
    """Open a database. Raises KvlensError with what to do when it is not there."""
    try:
        return open_database(address, create=create)
    except FileNotFoundError as error:
        raise KvlensError(f"no chDB directory {error}", f"kvlens load RUN --to chdb:{error}") from error
    except ImportError as error:
        raise KvlensError(f"no client for {address.shown}: {error}", "pip install 'kvlens[clickhouse]'") from error
    except Exception as error:
        raise KvlensError(
            f"cannot open {address.shown}: {_shorten(error)}",
            "check host, port (HTTP: 8123, TLS: 8443), user and CLICKHOUSE_PASSWORD",
        ) from error


def read_address(text: str) -> Address:
    """Parse a source text. Raises KvlensError (usage) when it is none."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise KvlensError(
            str(error), "chdb:PATH or clickhouse://host:8123/otel?since=TIME&until=TIME", exit_code=2
        ) from error


def open_source(text: str) -> SourceSession:
    """Open a source text. Raises KvlensError when it cannot be opened or holds no kvlens spans."""
    session = SourceSession(read_address(text))
    try:
        health = session.query("health").row(0, named=True)
    except KvlensError:
        session.close()
        raise
    if not health["used_spans"]:
        session.close()
        raise KvlensError(
            f"no kvlens spans in {session.run.name} ({health['spans']} spans in all)",
            "widen since/until (UTC), or load a run: kvlens load RUN --to ...",
        )
    return session


def _shorten(error: Exception) -> str:
    text = str(error).strip().splitlines() or [type(error).__name__]
    return text[0][:300]

"""Open a run as a Session: its spans in an `otel_traces` table that the SQL files of this package query.

The engine is chDB (ClickHouse in this process); the texts in analysis/sql only read `otel_traces`, so that they run
unchanged on the ClickHouse server that a fleet's collector fills.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from exporters.clickhouse.database import fetch_embedded, is_address
from exporters.clickhouse.schema import ARRIVING, FAST_TABLES, KEEP_DAYS, Layout, read_part, render_embedded_statements

from .errors import KvlensError
from .pieces import PROTOBUF, is_json_lines, keep_schema_aside, read_pieces
from .run import Run, find_run

TABLE = "otel_traces"
EVERY_FAST_TABLE = frozenset(FAST_TABLES)
SQL_DIRECTORY = Path(__file__).parent / "sql"

STOP_MERGES = "SYSTEM STOP MERGES"
"""For an embedded database that is read once: nobody waits for merged parts, and merging would take the cores.

It holds for the tables that are there.
"""
GROUP_FILES = 64
"""Files of one insert: ClickHouse tries 1,000 alternatives of a pattern at most."""
_PLAIN = re.compile(r"[\w./@+=-]+")
_PART = re.compile(r"/\* parts/(\w+)\.sql \*/")


@cache
def read_sql(name: str, *, fast: frozenset[str] = frozenset()) -> str:
    """Return the text of analysis/sql/<name>.sql, with the parts that it shares with others put in.

    ClickHouse has no include, and a view would have to be created on the fleet's server first. fast: typed tables that
    are filled as spans arrive (schema.FAST_TABLES), to be read where the text else looks into the collector's, by the
    sub-select that also fills them; the query's own text is the same.
    """
    text = (SQL_DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")

    def put_in(match: re.Match[str]) -> str:
        part = match[1]
        if f"kvlens_{part}" in FAST_TABLES:
            return f"kvlens_{part}" if f"kvlens_{part}" in fast else read_part(part)
        return read_sql(f"parts/{part}", fast=fast).rstrip()

    return _PART.sub(put_in, text)


class Session:
    """The spans of one run in an embedded database.

    run: conditions and paths of what was loaded.
    lines, bad_lines: lines read, and lines skipped because they are cut off or damaged.
    """

    def __init__(self, run: Run) -> None:
        from chdb import session  # half a second and 400 MB of library: only when something is opened

        self.run = run
        self.lines = 0
        self.bad_lines = 0
        self._directory = tempfile.TemporaryDirectory(prefix="kvlens-")
        self._database = session.Session(self._directory.name)
        self._execute("otel_traces")
        for statement in render_embedded_statements(Layout("default", KEEP_DAYS)):
            self._database.query(statement)
        self._database.query(STOP_MERGES)
        plain = [path for path in run.files if is_json_lines(path)]
        for group in _group_files(plain):
            self._load(group)
        for path in run.files:
            if path not in plain:
                self._load_pieces(path)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the database and its files."""
        self._database.close()
        self._directory.cleanup()

    def query(self, name: str, **params: Any) -> pl.DataFrame:
        """Run analysis/sql/<name>.sql and return its rows; params fill the {placeholders} of the text."""
        return _to_frame(self._execute(name, **params))

    def _execute(self, name: str, **params: Any) -> Any:
        return fetch_embedded(self._database, read_sql(name, fast=EVERY_FAST_TABLE), params={"table": TABLE, **params})

    def _load_pieces(self, path: Path) -> None:
        """Load what the database cannot read by itself: protobuf, and messages that a collector framed."""
        for piece in read_pieces(path):
            self.bad_lines += piece.damaged
            with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
                file.write(piece.data)
                file.flush()
                if piece.kind == PROTOBUF:
                    self.lines += piece.messages
                    if piece.data:
                        with keep_schema_aside():
                            self._execute("import_otlp_protobuf", table=ARRIVING, path=file.name)
                else:
                    self._load(file.name)

    def _load(self, literal: str) -> None:
        counts = self.query("count_lines", path=literal)
        self.lines += counts["lines"][0]
        self.bad_lines += counts["bad_lines"][0]
        self._execute("import_otlp_json", table=ARRIVING, path=literal)


def _to_frame(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _escape_glob(path: str) -> str:
    """Let ClickHouse take a path literally: its file() reads * ? { } as patterns."""
    return "".join("?" if character in "*{}" else character for character in path)


def _group_files(files: Sequence[Path]) -> list[str]:
    """Put files together as patterns for file(): one insert of many small files costs a fraction of many inserts.

    A compression is told by the end of the whole pattern, so that it must be the same in a group.
    """
    groups: dict[tuple[Path, str], list[str]] = {}
    alone: list[str] = []
    for path in files:
        resolved = path.resolve()
        if resolved.stat().st_size == 0:
            continue
        if _PLAIN.fullmatch(str(resolved)):
            groups.setdefault((resolved.parent, resolved.suffix), []).append(
                resolved.name.removesuffix(resolved.suffix)
            )
        else:
            alone.append(_escape_glob(str(resolved)))
    for (folder, suffix), names in groups.items():
        for start in range(0, len(names), GROUP_FILES):
            some = names[start : start + GROUP_FILES]
            alone.append(f"{folder}/{{{','.join(some)}}}{suffix}" if len(some) > 1 else f"{folder}/{some[0]}{suffix}")
    return alone


def open_session(paths: Sequence[Path]) -> Session:
    """Open a run directory, a traces directory or span files. Raises KvlensError when there is nothing to read."""
    if len(paths) == 1 and is_address(str(paths[0])):
        from .sources import open_source

        return open_source(str(paths[0]))
    session = Session(find_run(paths))
    health = session.query("health").row(0, named=True)
    if not health["used_spans"]:
        session.close()
        raise _explain_nothing(session, health)
    return session


def _explain_nothing(session: Session, health: dict[str, int]) -> KvlensError:
    where = f"{session.run.name} ({len(session.run.files)} files, {session.lines} lines)"
    if health["impossible_spans"]:
        return KvlensError(
            f"all {health['impossible_spans']} kvlens spans in {where} have impossible clocks",
            "set the engines' clocks (see: chronyc tracking) to a year from 2001 to 2099 and record again",
        )
    if health["warmup_spans"]:
        return KvlensError(
            f"{where} holds warm-up requests only", "send requests whose X-Request-Id does not start with 'warmup-'"
        )
    if health["foreign_spans"]:
        return KvlensError(
            f"none of the {health['foreign_spans']} spans in {where} comes from kvlens",
            '"kv_connector_module_path": "instrumented_connectors" in the engines\' --kv-transfer-config',
        )
    damaged = f", {session.bad_lines} of them damaged" if session.bad_lines else ""
    return KvlensError(
        f"no spans in {where}{damaged}",
        "send a request, stop the engines cleanly, and check that OTEL_SDK_DISABLED and KVLENS_DISABLED are unset",
    )

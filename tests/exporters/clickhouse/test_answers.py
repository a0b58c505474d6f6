"""Kept answers: rows that their queries give, made at the end of a load, and used only while they are of all spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.answers import KEPT, PREFIX, UNFINISHED, keep_answers
from analysis.load import load_files
from analysis.run import find_run
from analysis.source import read_sql
from analysis.sources import SourceSession, connect, open_source, read_address
from exporters.clickhouse.schema import ARRIVING

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"


def load(name: str, target: str) -> None:
    load_files(find_run([RUNS / name]).files, read_address(target), 20_000)


def order(table: Any) -> list[str]:
    return sorted(json.dumps(row, default=str) for row in table.to_pylist())


def read(session: SourceSession) -> dict[str, list[str]]:
    return {name: order(session.query(name).to_arrow()) for name in KEPT}


def ask(session: SourceSession) -> dict[str, list[str]]:
    """The queries themselves, whatever is kept."""
    return {name: order(session._database.fetch(read_sql(name, fast=session.fast))) for name in KEPT}


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"chdb:{tmp_path / 'spans'}"


def test_each_load_keeps_what_the_queries_give_of_all_spans(target: str) -> None:
    counts = []
    for run in ("push", "pull"):
        load(run, target)
        with open_source(target) as session:
            assert set(session.answers) == set(KEPT)
            kept = read(session)
            assert kept == ask(session)
            counts.append(len(kept["milestones"]))
    assert 0 < counts[0] < counts[1]


def test_what_came_since_or_was_left_half_full_is_not_an_answer(target: str) -> None:
    load("push", target)
    address = read_address(target)
    database = connect(address)
    database.command(f"CREATE TABLE {UNFINISHED}milestones_0 ENGINE = MergeTree ORDER BY tuple() AS SELECT 1 AS a")
    database.command(f"INSERT INTO {ARRIVING} SELECT *, {_resources(database)} FROM otel_traces LIMIT 1")
    database.close()
    with open_source(target) as session:
        assert session.answers == {}
        assert read(session) == ask(session)
    database = connect(address)
    keep_answers(database)
    tables = database.fetch("SELECT name FROM system.tables WHERE name LIKE 'kvlens_%'")["name"].to_pylist()
    database.close()
    assert [name for name in tables if name.startswith(UNFINISHED)] == []
    assert len([name for name in tables if name.startswith(PREFIX)]) == len(KEPT)
    with open_source(target) as session:
        assert set(session.answers) == set(KEPT)
        assert read(session) == ask(session)


def test_a_window_of_time_is_asked_anew(target: str) -> None:
    load("push", target)
    with open_source(f"{target}?since=2001-01-01T00:00:00") as session:
        assert session.answers == {}


def _resources(database: Any) -> str:
    """What kvlens_arriving has beside a span's columns, empty."""
    kinds = database.fetch(f"DESCRIBE {ARRIVING}").to_pylist()
    more = kinds[-(len(kinds) - len(database.fetch("DESCRIBE otel_traces").to_pylist())) :]
    return ", ".join("0" if "UInt64" in column["type"] else "''" for column in more)

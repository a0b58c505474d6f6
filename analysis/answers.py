"""Answers that a chDB directory keeps beside its spans: the rows of the queries that nearly every command asks.

A load makes them at its end. An answer's table is named after the query and a digest of its text, and its comment says
of how many spans it was made: after more spans, or in another version, the query is asked anew.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .source import EVERY_FAST_TABLE, TABLE, read_sql

KEPT = ("milestones", "routers")
PREFIX, UNFINISHED = "kvlens_answer_", "kvlens_unfinished_"


def find_answers(database: Any, spans: int) -> dict[str, str]:
    """Find the answers that were made of what is stored: query -> table. spans: how many are stored."""
    rows = database.fetch(
        f"SELECT name FROM system.tables WHERE database = currentDatabase() AND name LIKE '{PREFIX}%' "
        f"AND comment = '{spans}'"
    )
    there = set(rows["name"].to_pylist())
    return {name: table for name in KEPT for table in (_name_table(name),) if table in there}


def keep_answers(database: Any) -> None:
    """Make the answers of an embedded database anew, unless they are those of what it holds."""
    spans = int(database.fetch(f"SELECT count() AS n FROM {TABLE}")["n"][0].as_py())
    if not spans or len(find_answers(database, spans)) == len(KEPT):
        return
    drop_answers(database)
    for name in KEPT:
        table = _name_table(name)
        making = table.replace(PREFIX, UNFINISHED)
        # Filled under another name: a table that a killed load left half full is never taken for an answer.
        database.command(
            f"CREATE TABLE {making} ENGINE = MergeTree ORDER BY tuple() COMMENT '{spans}' "
            f"AS {read_sql(name, fast=EVERY_FAST_TABLE)}"
        )
        database.command(f"RENAME TABLE {making} TO {table}")


def drop_answers(database: Any) -> None:
    """Drop all answers, unfinished ones too."""
    rows = database.fetch(
        "SELECT name FROM system.tables WHERE database = currentDatabase() "
        f"AND (name LIKE '{PREFIX}%' OR name LIKE '{UNFINISHED}%')"
    )
    for table in rows["name"].to_pylist():
        database.command(f"DROP TABLE {table}")


def _name_table(name: str) -> str:
    text = read_sql(name, fast=EVERY_FAST_TABLE)
    return f"{PREFIX}{name}_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"

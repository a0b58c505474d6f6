"""What all tests share: a home for spans that have no other, and a database that does not compile its queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

# ClickHouse compiles an expression that it meets for the fourth time. A command asks each query once and never comes to
# that; here hundreds of runs are analysed in one process, and compiling was more than half of what an analysis cost.
COMPILING = ("compile_expressions", "compile_aggregate_expressions", "compile_sort_description")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the default exporter's files out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def interpret_queries() -> Iterator[None]:
    """Let every embedded database of this process interpret its queries, as the one of a command does."""
    if not {"analysis.source", "exporters.clickhouse.database"} & sys.modules.keys():
        yield
        return
    from chdb import session

    stock = session.Session.__init__

    def open_database(self: Any, *arguments: Any, **more: Any) -> None:
        stock(self, *arguments, **more)
        for name in COMPILING:
            self.query(f"SET {name} = 0")

    session.Session.__init__ = open_database
    yield
    session.Session.__init__ = stock

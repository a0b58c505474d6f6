"""The budget that a panel shows is the one of `kvlens breakdown`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.commands.breakdown import breakdown
from analysis.source import open_session
from dashboards.check import DEFAULTS
from dashboards.config import Config
from dashboards.sql import BUDGET, budget_sql, slowest_sql
from dashboards.targets import SQL, Target

RUNS = Path(__file__).resolve().parents[1] / "fixtures/runs"
SAME = ("prefill_queue", "prefill_compute", "decode_queue", "first_decode")
BEFORE = {"route", "prefill_ingress"}
AFTER = {"delivery"}


def ask(session: Any, sql: str, trace: str = "") -> list[dict[str, Any]]:
    text = Target("", SQL, sql).fill({**DEFAULTS, "trace_id": trace})
    rows: list[dict[str, Any]] = session._database.query(text, "ArrowTable").to_pylist()
    return rows


def read_breakdown(run: Path) -> dict[str, dict[str, float]]:
    done = CliRunner().invoke(breakdown, [str(run), "--json"])
    assert done.exit_code == 0, done.output
    return {request["trace_id"]: request["segments"] for request in json.loads(done.output)["requests"]}


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_panels_agree_with_the_command(mode: str) -> None:
    commands = read_breakdown(RUNS / mode)
    with open_session([RUNS / mode]) as session:
        rows = ask(session, slowest_sql(Config()))
        assert {row["trace_id"] for row in rows} == set(commands)
        for number, row in enumerate(rows):
            segments = commands[row["trace_id"]]
            engines = {name: ms for name, ms in segments.items() if name not in BEFORE | AFTER}
            assert row["ttft"] == pytest.approx(sum(engines.values()), abs=0.1)
            assert {name: row[name] for name in SAME} == pytest.approx(
                {name: segments[name] for name in SAME}, abs=0.06
            )
            assert all(row[name] >= 0 for name, _, _ in BUDGET), row
            if number % 6:
                continue  # a query over the whole run for each of the shares
            parts = ask(session, budget_sql(Config()), row["trace_id"])
            assert [part["segment"] for part in parts] == [name for name, _, _ in BUDGET]
            assert sum(part["share"] for part in parts) == pytest.approx(1)


def test_unknown_trace_has_no_budget() -> None:
    with open_session([RUNS / "push"]) as session:
        assert ask(session, budget_sql(Config()), "no such trace") == []

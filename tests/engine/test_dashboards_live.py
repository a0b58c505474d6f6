"""Alerts and panels on a real pair: a real Prometheus scrapes it while two faults are injected.

The short form of `python -m benchmarks.live_faults`, which injects every alert's fault in all modes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.live.incidents import HEALTHY_PHASE, PULL
from benchmarks.live.matrix import Row, read_rows
from benchmarks.live.monitor import Monitor, open_store
from benchmarks.live.scenes import ACTS, play
from benchmarks.live_faults import check_all
from dashboards.build import build
from dashboards.check import DEFAULTS, FAILED, OK, Finding, check_run
from dashboards.config import Config
from dashboards.targets import find_targets

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus: apt-get install prometheus"),
]
SHOWN = ("nobody reads", "killed prefill")
# No push, no second turn; no baseline of a minute ago; what did not happen has no series.
UNFED = (
    "pairing", "push", "Pairing", "Push", "Late side", "how late", "Registration", "Writer", "Fetch or", "grew",
    "became slower", "Change of", "then", "Offers", "EfaRetransmissions", "Expected remote", "decision", "Decision",
    "Readback",
)  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Play a healthy phase and two incidents; return matrix rows and findings."""
    folder = tmp_path_factory.mktemp("live")
    incidents = [replace(HEALTHY_PHASE, seconds=10), *(each for each in PULL if each.name in SHOWN)]
    monitor = Monitor(folder / "prometheus")
    monitor.start()
    try:
        phases = list(play(replace(ACTS["pull"], incidents=incidents), folder / "pull", monitor, lambda _: None))
    finally:
        monitor.stop()
    targets = list(find_targets(Config(), build(Config())))
    with open_store(folder / "prometheus") as url:
        rows, findings = read_rows(url, phases), check_all(url, phases)
    return {"rows": rows, "findings": findings, "sql": list(check_run(Config(), targets, folder / "pull", DEFAULTS))}


def test_alerts_fire_in_their_fault_and_not_without_one(
    live: dict[str, Any], report: Callable[[str], None]
) -> None:  # fmt: skip
    rows: list[Row] = live["rows"]
    assert [row.name for row in rows] == ["healthy", *SHOWN]
    assert rows[0].fired == frozenset()
    assert {row.name: sorted(row.missing) for row in rows if row.missing} == {}
    assert {row.name: sorted(row.wrong) for row in rows if row.wrong} == {}
    report("alerts: " + json.dumps({row.name: sorted(row.fired) for row in rows}))


def test_every_panel_that_this_run_feeds_has_data(live: dict[str, Any], report: Callable[[str], None]) -> None:
    findings: list[Finding] = live["findings"]
    assert [finding for finding in findings if finding.state == FAILED] == []
    empty = [finding.where for finding in findings if finding.state != OK]
    assert [where for where in empty if not any(word in where for word in UNFED)] == []
    report(f"panels and rules: {len(findings) - len(empty)} of {len(findings)} queries have data, {len(empty)} not fed")


def test_every_query_of_clickhouse_runs_on_the_live_run(live: dict[str, Any]) -> None:
    findings: list[Finding] = live["sql"]
    assert [finding for finding in findings if finding.state == FAILED] == []
    # A short run may have no slow step.
    assert [finding.where for finding in findings if finding.state != OK and "Slow steps" not in finding.where] == []
    assert len(findings) >= 7

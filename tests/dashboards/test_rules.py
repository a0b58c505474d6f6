"""Rules: promtool accepts them, each alert fires on its fault and nothing fires on a healthy pair."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from rule_series import CASES, HEALTHY, Case

from dashboards.config import Config
from dashboards.rules.alerts import make_alerts
from dashboards.rules.model import Alert, Recording
from dashboards.rules.recording import make_recordings
from dashboards.rules.render import render

ROOT = Path(__file__).resolve().parents[2]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
CONFIG = Config()
ALERTS = [rule for group in make_alerts(CONFIG) for rule in group.rules if isinstance(rule, Alert)]


def promtool(*arguments: str) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def rule_files(tmp_path: Path) -> list[str]:
    files = {"recording.yaml": make_recordings(CONFIG), "alerts.yaml": make_alerts(CONFIG)}
    for name, groups in files.items():
        (tmp_path / name).write_text(render(CONFIG, groups), encoding="utf-8")
    return [str(tmp_path / name) for name in files]


@needs_promtool
def test_promtool_accepts_the_rules(rule_files: list[str]) -> None:
    assert "SUCCESS" in promtool("check", "rules", *rule_files)


def write_test(case: Case) -> dict[str, Any]:
    series = {**HEALTHY, **case.series}
    firing = [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in case.alerts.items()]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": case.name,
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "89m", "exp_samples": firing}],
    }


@needs_promtool
@pytest.mark.parametrize("case", [Case("healthy", {}, {}), *CASES], ids=lambda case: case.name)
def test_alerts_fire_on_their_fault_and_no_other(case: Case, rule_files: list[str], tmp_path: Path) -> None:
    document = {"rule_files": rule_files, "evaluation_interval": "30s", "tests": [write_test(case)]}
    (tmp_path / "test.yaml").write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_every_alert_has_a_fault() -> None:
    assert {name for case in CASES for name in case.alerts} == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_alert_has_what_a_tired_person_needs(alert: Alert) -> None:
    assert alert.severity in {"critical", "warning", "info"}
    assert alert.summary.endswith(".")
    assert alert.action.endswith(".")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_alert_has_a_runbook(alert: Alert) -> None:
    text = (ROOT / "docs" / "runbooks" / f"{alert.name}.md").read_text(encoding="utf-8")
    for heading in ("## What it means", "## Confirm", "## Change", "## See that it helped"):
        assert heading in text
    assert "kvlens " in text


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_page_lists_the_alert_with_its_severity(alert: Alert) -> None:
    page = (ROOT / "docs/dashboards.md").read_text(encoding="utf-8")
    assert f"| [{alert.name}](runbooks/{alert.name}.md) | {alert.severity} |" in page
    runbook = (ROOT / "docs/runbooks" / f"{alert.name}.md").read_text(encoding="utf-8")
    assert f"*{alert.severity}*" in runbook


def test_names_are_unique() -> None:
    names = [rule.record for group in make_recordings(CONFIG) for rule in group.rules if isinstance(rule, Recording)]
    assert len(names) == len(set(names))
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)

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


FLEETS = (Case("healthy", {}, {}), *CASES)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rule_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    files = {"recording.yaml": make_recordings(CONFIG), "alerts.yaml": make_alerts(CONFIG)}
    folder = tmp_path_factory.mktemp("rules")
    for name, groups in files.items():
        (folder / name).write_text(render(CONFIG, groups), encoding="utf-8")
    return [str(folder / name) for name in files]


@needs_promtool
def test_promtool_accepts_the_rules(rule_files: list[str]) -> None:
    done = promtool("check", "rules", *rule_files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def ask_of(case: Case) -> str:
    return f'count by (alertname) (ALERTS{{alertstate="firing", cluster="{FLEETS.index(case)}"}})'


def write_test(fleets: tuple[Case, ...]) -> dict[str, Any]:
    """Put each case into a cluster of its own: the rules are evaluated once, and no fault may fire elsewhere."""
    series, questions = [], []
    for number, case in enumerate(fleets):
        for name, values in {**HEALTHY, **case.series}.items():
            assert 'cluster="c"' in name
            series.append({"series": name.replace('cluster="c"', f'cluster="{number}"'), "values": values})
        firing = [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in case.alerts.items()]
        questions.append({"expr": ask_of(case), "eval_time": "89m", "exp_samples": firing})
    questions.append({"expr": "count by (alertname) (ALERTS{cluster=''})", "eval_time": "89m", "exp_samples": []})
    return {"interval": "30s", "input_series": series, "promql_expr_test": questions}


@pytest.fixture(scope="module")
def verdict(rule_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What promtool says of all cases: a paragraph for each that is not as expected, with its query."""
    document = {"rule_files": rule_files, "evaluation_interval": "60s", "tests": [write_test(FLEETS)]}
    path = tmp_path_factory.mktemp("cases") / "test.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")
    return promtool("test", "rules", str(path))


@needs_promtool
@pytest.mark.parametrize("case", FLEETS, ids=lambda case: case.name)
def test_alerts_fire_on_their_fault_and_no_other(case: Case, verdict: subprocess.CompletedProcess[str]) -> None:
    output = verdict.stdout + verdict.stderr
    wrong = [part for part in output.split("expr: ")[1:] if json.dumps(ask_of(case)) in part.splitlines()[0]]
    assert not wrong, wrong


@needs_promtool
def test_no_alert_fires_outside_the_cases(verdict: subprocess.CompletedProcess[str]) -> None:
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


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

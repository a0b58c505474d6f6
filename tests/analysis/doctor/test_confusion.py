"""Every rule fires on its reproduction and on nothing else: the confusion matrix, printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from reproductions import HEALTHY_RUNS, REPRODUCTIONS

from analysis.doctor import diagnose, gather
from analysis.doctor.engine import load_rules
from analysis.doctor.finding import Finding
from analysis.run import find_run
from analysis.source import TABLE, Session, open_session, read_sql

BUILDS = REPRODUCTIONS | HEALTHY_RUNS
MARK = "test.run"
CASES = set(range(1, 17))
RECORDED = Path(__file__).parents[2] / "fixtures" / "runs"


class Part:
    """One of many runs in one table, as a session of its own: opening a database for each would take minutes."""

    def __init__(self, whole: Session, path: Path, name: str) -> None:
        self.run, self.lines, self.bad_lines = find_run([path]), 0, 0
        self._whole = whole
        condition = f"ResourceAttributes[\\'{MARK}\\'] = \\'{name}\\'"
        whole._database.query(f"SET additional_table_filters = {{'{TABLE}': '{condition}'}}")

    def query(self, name: str, **params):
        # Without the typed tables: only the collector's own knows the mark.
        table = self._whole._database.query(read_sql(name), "ArrowTable", params={"table": TABLE, **params})
        return pl.from_arrow(table)


def mark_lines(path: Path, name: str) -> Iterator[str]:
    for file in sorted((path / "traces").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            for resource in record["resourceSpans"]:
                resource["resource"]["attributes"].append({"key": MARK, "value": {"stringValue": name}})
            yield json.dumps(record) + "\n"


@pytest.fixture(scope="module")
def findings(tmp_path_factory) -> dict[str, list[Finding]]:
    """Findings of every reproduction and healthy run, by name."""
    root = tmp_path_factory.mktemp("doctor")
    paths = {name: root / str(place) for place, name in enumerate(BUILDS)}
    with (root / "all.jsonl").open("w") as file:
        for name, path in paths.items():
            path.mkdir()
            BUILDS[name](path)
            file.writelines(mark_lines(path, name))
    with open_session([root / "all.jsonl"]) as whole:
        found = {name: diagnose(gather(Part(whole, path, name))) for name, path in paths.items()}
        whole._database.query("SET additional_table_filters = {}")
    return found


def test_every_rule_has_a_reproduction_and_every_case_a_rule() -> None:
    rules = load_rules()
    assert {rule.name for rule in rules} == set(REPRODUCTIONS)
    assert len(rules) >= 20
    # Of the field's cases 13 and 14 concern kvlens's own delivery; all have a rule.
    assert {case for rule in rules for case in rule.cases} == CASES


@pytest.mark.slow
def test_confusion_matrix(findings, capsys) -> None:
    names = [rule.name for rule in load_rules()]
    wrong = []
    lines = [f"{'run':<28} finds"]
    for run, found in findings.items():
        fired = [finding.rule for finding in found]
        lines.append(f"{run:<28} {', '.join(fired) or '-'}")
        expected = [run] if run in REPRODUCTIONS else []
        if fired != expected:
            wrong.append(f"{run}: {fired}")
    diagonal = sum([finding.rule for finding in findings[name]] == [name] for name in names)
    lines.append(f"{diagonal} of {len(names)} rules fire on their reproduction alone, {len(HEALTHY_RUNS)} healthy runs")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_findings_carry_evidence_cost_and_remedy(findings) -> None:
    for name in REPRODUCTIONS:
        for finding in findings[name]:
            assert finding.affected > 0
            assert 0 < finding.share <= 1, finding
            assert finding.evidence, finding
            assert all(finding.evidence), finding
            assert finding.remedy
            assert finding.anchor.endswith(f"#{finding.rule}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("completion-lag", 165, 175), ("slow-router", 195, 205), ("handshake-on-path", 110, 122), ("rank-skew", 60, 64),
     ("fragmented-cache", 45, 47), ("legs-in-sequence", 60, 75)],
)  # fmt: skip
def test_the_cost_is_what_was_put_in(findings, name: str, low: float, high: float) -> None:
    assert low <= findings[name][0].cost_ms["p50"] <= high


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded runs in this checkout")
def test_recorded_real_runs_are_healthy() -> None:
    for manifest in sorted(RECORDED.glob("*/manifest.json")):
        with open_session([manifest.parent]) as session:
            assert [finding.title for finding in diagnose(gather(session))] == [], manifest.parent.name

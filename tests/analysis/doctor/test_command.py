"""`kvlens doctor`: what it prints, what its JSON holds, and its exit codes; documentation of every rule."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from reproductions import HEALTHY_RUNS, REPRODUCTIONS

from analysis.cli import main
from analysis.doctor import thresholds
from analysis.doctor.documentation import render_rules
from analysis.doctor.engine import load_rules, read_docs
from analysis.load import load_files
from analysis.run import find_run
from analysis.sources import read_address


def run_doctor(*arguments: str):
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.fixture
def hanging(tmp_path):
    REPRODUCTIONS["post-failed"](tmp_path)
    return tmp_path


def test_an_error_exits_with_3_and_names_the_waiting_request(hanging) -> None:
    done = run_doctor(str(hanging))
    assert done.exit_code == 3, done.output
    assert "ERROR post-failed" in done.output
    assert re.search(r"decode_request=cmpl-hangs3-0-\w+ decode_waited_ms=\d", done.output)
    assert "try: look at the prefill engine's log" in done.output
    assert run_doctor(str(hanging), "--fail-on", "never").exit_code == 0


def test_json_has_the_same_from_a_run_and_from_a_database(hanging, tmp_path) -> None:
    from_run = json.loads(run_doctor(str(hanging), "--json").output)
    assert from_run["schema"] == 1
    (finding,) = from_run["findings"]
    assert (finding["rule"], finding["severity"], finding["affected"]) == ("post-failed", "error", 1)
    assert finding["docs"] == "docs/doctor.md#post-failed"
    target = f"chdb:{tmp_path / 'spans'}"
    load_files(find_run([hanging]).files, read_address(target), 20_000)
    done = run_doctor("--source", target, "--json")
    assert done.exit_code == 3
    assert json.loads(done.output)["findings"] == from_run["findings"]


def test_warnings_and_health_exit_with_0(tmp_path) -> None:
    for name, build in (("slow", REPRODUCTIONS["slow-router"]), ("well", HEALTHY_RUNS["healthy push"])):
        (tmp_path / name).mkdir()
        build(tmp_path / name)
    done = run_doctor(str(tmp_path / "slow"))
    assert (done.exit_code, "WARNING slow-router" in done.output) == (0, True)
    assert "costs them 200.0 ms of TTFT at p50" in done.output
    assert run_doctor(str(tmp_path / "slow"), "--fail-on", "warning").exit_code == 3
    done = run_doctor(str(tmp_path / "well"))
    assert (done.exit_code, "healthy" in done.output) == (0, True)


def test_usage_and_missing_data(tmp_path: Path) -> None:
    assert run_doctor().exit_code == 2
    assert run_doctor(str(tmp_path), "--source", "chdb:x").exit_code == 2
    assert run_doctor(str(tmp_path / "nothing")).exit_code == 1


def test_every_rule_is_documented_with_symptom_threshold_and_remedy() -> None:
    page = render_rules()
    for rule in load_rules():
        text = read_docs(rule)
        assert "Finding:" in text, rule.name
        assert "Remedy:" in text, rule.name
        assert f"### {rule.name}\n" in page
        assert rule.check.__module__.endswith(f".{rule.name.replace('-', '_')}")


def test_every_threshold_says_why() -> None:
    source = Path(thresholds.__file__).read_text()
    for name in (name for name in vars(thresholds) if name.isupper() and not name.startswith("NS_PER")):
        assert re.search(rf"^(?:\w+, )*{name}(?:, \w+)* = .*\n(?:\"\"\"|.*\n\"\"\")", source, re.M), name

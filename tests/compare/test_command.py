"""`kvlens compare` on one recorded pair of real runs: tables, JSON, refusals, the gate, published figures."""

import json
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.cli import main
from analysis.run import find_run

command = import_module("analysis.commands.compare")
break_down_path = command._break_down

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)], prog_name="kvlens")


@pytest.fixture(scope="module")
def breakdowns():
    """The recorded pair, broken down once."""
    return {name: break_down_path(RUNS / name) for name in ("pull", "push")}


@pytest.fixture(autouse=True)
def broken_down_once(request, monkeypatch):
    """Take spans from `breakdowns`, conditions from the run named on the command line; not in end-to-end tests."""
    if "end_to_end" not in request.node.name:
        known = request.getfixturevalue("breakdowns")
        monkeypatch.setattr(command, "_break_down", lambda path: replace(known[path.name], run=find_run([path])))


@pytest.fixture
def pair(tmp_path):
    """A copy of the recorded pair that a test may change."""
    for name in ("pull", "push"):
        shutil.copytree(RUNS / name, tmp_path / name)
    return tmp_path / "pull", tmp_path / "push"


def change(path, **conditions):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **conditions}))


def test_pairs_of_real_runs_are_compared_end_to_end():
    done = run(RUNS / "pull", RUNS / "push")
    assert done.exit_code == 0, done.output
    assert "Paired by request: same workload and seed, 20 pairs." in done.output
    assert "connector.kv_connector" in done.output
    assert "NOT COMPARABLE" not in done.output
    assert "better (only in first)" in done.output  # push has no hand-off through the router


def test_json_names_verdicts_and_conditions():
    document = json.loads(run(RUNS / "pull", RUNS / "push", "--json").output)
    assert document["conditions"]["comparable"]
    assert {one["status"] for one in document["conditions"]["differences"]} == {"declared"}
    rows = {row["name"]: row for row in document["rows"]}
    parts = sum(row["difference_ms"] for name, row in rows.items() if name not in ("ttft", "tpot"))
    assert parts == pytest.approx(rows["ttft"]["difference_ms"], abs=1e-3)
    assert rows["handoff_dispatch"]["verdict"] == "better"
    assert rows["handoff_dispatch"]["only_in"] == "a"
    assert document["method"]["matched_by"] == "request"


def test_a_run_against_itself_shows_nothing():
    document = json.loads(run(RUNS / "pull", RUNS / "pull", "--json").output)
    assert {row["verdict"] for row in document["rows"]} == {"no evidence"}
    assert document["conditions"]["differences"] == []


def test_more_than_the_connector_changed(pair):
    change(pair[1], model={"name": "another"}, versions={"vllm": "0.31.0"})
    refused = run(*pair)
    assert refused.exit_code == 1
    assert "more than the connector changed" in refused.output
    assert "versions.vllm: 0.32.0 -> 0.31.0" in refused.output
    assert "--vary model --vary versions" in refused.output
    forced = run(*pair, "--force")
    assert forced.exit_code == 0
    assert "NOT COMPARABLE: more than the connector changed (model, versions)" in forced.output
    declared = run(*pair, "--vary", "model", "--vary", "versions")
    assert declared.exit_code == 0
    assert "NOT COMPARABLE" not in declared.output


def test_unknown_conditions_are_refused_and_matched_by_stratum(pair):
    (pair[0] / "manifest.json").unlink()
    refused = run(*pair)
    assert refused.exit_code == 1
    assert "the conditions of pull are unknown" in refused.output
    document = json.loads(run(*pair, "--force", "--json").output)
    assert document["conditions"]["unknown"] == ["pull"]
    assert document["method"]["matched_by"] == "stratum"


def test_another_seed_is_another_workload(pair):
    manifest = json.loads((pair[1] / "manifest.json").read_text())
    change(pair[1], workloads=[{**manifest["workloads"][0], "seed": 8}])
    assert "workload.seed: 7 -> 8" in run(*pair).output
    document = json.loads(run(*pair, "--vary", "workload", "--json").output)
    assert document["method"]["matched_by"] == "stratum"


def test_minor_versions_are_noted_only(pair):
    manifest = json.loads((pair[1] / "manifest.json").read_text())
    change(pair[1], versions={**manifest["versions"], "kvlens": "9.9"})
    done = run(*pair, "--json")
    assert done.exit_code == 0
    status = {one["key"]: one["status"] for one in json.loads(done.output)["conditions"]["differences"]}
    assert status["versions.kvlens"] == "noted"


def test_gate_fails_on_a_significant_regression_only():
    better = run(RUNS / "pull", RUNS / "push", "--gate")
    assert better.exit_code == 0
    assert "gate passed" in better.output
    worse = run(RUNS / "push", RUNS / "pull", "--gate")
    assert worse.exit_code == 3
    assert "GATE FAILED: tpot worse by" in worse.output
    assert run(RUNS / "push", RUNS / "pull", "--gate", "--gate-threshold", "500").exit_code == 0
    segment = run(RUNS / "push", RUNS / "pull", "--gate", "--gate-on", "handoff_dispatch", "--gate-threshold", "1")
    assert segment.exit_code == 3


def test_published_figures_stand_beside_with_both_conditions():
    done = run(RUNS / "push", "--published")
    assert done.exit_code == 0
    assert "claims neither equality nor a difference" in " ".join(done.output.split())
    assert "AWS P5en" in done.output
    assert "1P1D" in done.output
    assert "about 540 ms" in done.output
    assert "not stated" in done.output
    document = json.loads(run(RUNS / "push", "--published", "--json").output)
    assert next(one["title"] for one in document["sets"]).startswith("Push against pull")


def test_headline_is_saved_as_a_note(pair):
    assert run(*pair, "--save").exit_code == 0
    for path, other in ((pair[0], "push"), (pair[1], "pull")):
        (note,) = [json.loads(line) for line in (path / "notes.jsonl").read_text().splitlines()]
        assert note["kind"] == "comparison"
        assert note["other"] == other
        assert note["text"].startswith("push against pull:")


def test_runs_of_one_name_are_told_apart(tmp_path):
    for parent in ("monday", "tuesday"):
        shutil.copytree(RUNS / "pull", tmp_path / parent / "pull")
    document = json.loads(run(tmp_path / "monday" / "pull", tmp_path / "tuesday" / "pull", "--json").output)
    assert (document["a"], document["b"]) == ("monday/pull", "tuesday/pull")
    document = json.loads(run(RUNS / "pull", RUNS / "pull", "--json").output)
    assert (document["a"], document["b"]) == ("pull (A)", "pull (B)")


def test_wrong_number_of_runs():
    done = run(RUNS / "pull")
    assert done.exit_code == 2
    assert "1 runs given, 2 needed" in done.output

"""`kvlens runs`: found by conditions, figures and notes; the cache follows the spans."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.cli import main
from analysis.errors import KvlensError
from analysis.library import headline
from analysis.library.headline import read_headline
from analysis.library.where import check_keys, meets, parse_condition

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


def run(*arguments):
    return CliRunner().invoke(main, ["runs", *map(str, arguments)], prog_name="kvlens")


def names(done):
    assert done.exit_code == 0, done.output
    return [Path(entry["path"]).name for entry in json.loads(done.output)["runs"]]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The recorded pair below a folder, one level apart."""
    root = tmp_path_factory.mktemp("library")
    shutil.copytree(RUNS / "pull", root / "pull")
    shutil.copytree(RUNS / "push", root / "later" / "push")
    return root


def test_lists_runs_with_conditions_and_figures(library):
    done = run(library)
    assert done.exit_code == 0, done.output
    assert "later/push" in done.output
    assert "0.32.0" in done.output
    assert "is the largest part of TTFT" in done.output
    assert names(run(library, "--json")) == ["push", "pull"]  # newest first


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["mode=push"], ["push"]),
        (["mode!=push"], ["pull"]),
        (["vllm=0.32.0", "seed=7"], ["push", "pull"]),
        (["vllm>=0.31"], ["push", "pull"]),
        (["input_lens=200,1000,3000"], ["push", "pull"]),
        (["prefix_caching=off"], ["push", "pull"]),
        (["model.name~QWEN"], ["push", "pull"]),
        (["requests>=20", "unfinished=0"], ["push", "pull"]),
        (["ttft_p50>1e9"], []),
        (["share.wire<0.5"], ["push", "pull"]),
        (["run=pull"], ["pull"]),
    ],
)
def test_where(library, conditions, found):
    arguments = [part for condition in conditions for part in ("--where", condition)]
    assert names(run(library, *arguments, "--json")) == found


def test_unknown_condition_names_close_ones(library):
    done = run(library, "--where", "ttft_p5>3")
    assert done.exit_code == 2
    assert "ttft_p50" in done.output
    assert run(library, "--where", "nonsense").exit_code == 2


def test_notes_are_attached_and_found(library):
    assert run("--note", library / "pull", "The switch was degraded").exit_code == 0
    assert names(run(library, "--grep", "SWITCH was", "--json")) == ["pull"]
    assert "The switch was degraded" in run(library).output
    assert names(run(library, "--grep", "nothing like this", "--json")) == []
    assert run("--note", library / "absent", "text").exit_code == 2


def test_cache_is_used_and_follows_the_spans(tmp_path, monkeypatch):
    path = tmp_path / "pull"
    shutil.copytree(RUNS / "pull", path)
    times = []
    monkeypatch.setattr(headline, "summarize_breakdown", lambda made: times.append(made) or {"requests": 20})
    monkeypatch.setattr(headline, "break_down", lambda session: session.run.name)
    assert read_headline(path)["requests"] == 20
    cache = path / "summary.json"
    cache.write_text(json.dumps({**json.loads(cache.read_text()), "requests": 12345}))
    assert read_headline(path)["requests"] == 12345
    span_file = next((path / "traces").iterdir())
    os.utime(span_file, ns=(1, 1))
    assert read_headline(path)["requests"] == 20
    cache.write_text("damaged")
    assert read_headline(path)["requests"] == 20
    cache.write_text(json.dumps({"schema": 0, "requests": 1}))
    assert read_headline(path)["requests"] == 20
    assert len(times) == 4


def test_runs_without_spans_are_listed_with_the_problem(tmp_path):
    (tmp_path / "empty" / "traces").mkdir(parents=True)
    (tmp_path / "empty" / "manifest.json").write_text('{"mode": "push"}')
    done = run(tmp_path)
    assert done.exit_code == 0
    assert "no span files" in done.output


def test_no_runs(tmp_path):
    assert "no runs in" in run(tmp_path).output
    assert run(tmp_path / "absent").exit_code == 2


def test_conditions_compare_by_type():
    values = {"versions.vllm": "0.32.0", "workload.rate": 0.5, "cached": False}
    assert meets(values, parse_condition("vllm > 0.9"))
    assert not meets(values, parse_condition("vllm<0.32.0"))
    assert meets(values, parse_condition("rate=0.50"))
    assert meets(values, parse_condition("cached=false"))
    assert meets(values, parse_condition("absent!=1"))
    with pytest.raises(KvlensError, match="is a number"):
        meets(values, parse_condition("rate>fast"))
    check_keys([parse_condition("rate=1")], [values])

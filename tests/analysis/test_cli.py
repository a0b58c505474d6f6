"""The command line: tables, JSON, waterfall, side by side, and errors that name the remedy."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from span_builder import EPOCH, MS, Request, World, add_request, pull_times, push_times

from analysis.cli import main


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def run_command(*args):
        return CliRunner().invoke(main, [str(arg) for arg in args])

    return run_command


@pytest.fixture
def runs(tmp_path):
    made = {}
    for mode, make in (("pull", pull_times), ("push", push_times)):
        world = World(mode)
        lines = []
        for number in range(6):
            times, _ = make(number * 600 * MS, prefill_compute=100, decode_queue=201 if number == 3 else 1)
            add_request(world, Request(f"{mode}-{number}", prompt_tokens=200 * 4**number), times)
            sent, seen = EPOCH + times.sent, EPOCH + times.first_byte
            lines.append(
                {"request_id": f"{mode}-{number}", "status": "ok", "send_unix_ns": sent, "first_byte_unix_ns": seen}
            )
        made[mode] = tmp_path / mode
        world.write(made[mode] / "traces")
        (made[mode] / "manifest.json").write_text(json.dumps({"mode": mode}))
        (made[mode] / "client.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"request_')
    return made


def test_tables_say_where_the_time_went(run, runs):
    result = run("breakdown", runs["pull"])
    assert result.exit_code == 0, result.output
    for text in (
        "TTFT budget, pull: 6 requests",
        "prefill_compute",
        "coordination",
        "<=256 (n=1)",
        ">16384",
    ):
        assert text in result.output
    slow = next(line for line in result.output.splitlines() if "pull-3" in line)
    assert "decode_queue 201.0 ms" in slow
    assert "the first decode step was not scheduled" in slow
    assert "1 lines of client.jsonl damaged" in result.output


def test_json_is_the_document(run, runs):
    document = json.loads(run("breakdown", runs["push"], "--json").output)
    assert document["schema"] == 1
    assert document["run"]["mode"] == "push"
    assert len(document["requests"]) == 6
    both = json.loads(run("breakdown", runs["push"], runs["pull"], "--json").output)
    assert [entry["run"]["mode"] for entry in both["runs"]] == ["push", "pull"]


def test_runs_side_by_side_with_the_clients_figures(run, runs):
    output = run("breakdown", runs["pull"], runs["push"]).output
    assert "pull (pull, n=6)" in output
    assert "push (push, n=6)" in output
    assert "client TTFT p50 / p90 / p99" in output
    residual = next(line for line in output.splitlines() if "|residual|" in line)
    assert residual.count("0.00 / 0.00") == 2


@pytest.mark.parametrize("name", ["push-2", "cmpl-push-2-0-d3c2b1a0", "cmpl-push-2-0-0a1b2c3d"])
def test_one_request_as_a_waterfall(run, runs, name):
    output = run("breakdown", runs["push"], "--request", name).output
    assert "push-2  push  TTFT" in output
    lines = {line[:24].strip(): line for line in output.splitlines()}
    assert "100.00" in lines["prefill_compute"]
    assert "░" in lines["hidden registration"]
    assert "1.00" in lines["hidden registration"]


def test_span_files_alone_are_one_run(run, runs):
    files = sorted((runs["pull"] / "traces").iterdir())
    assert len(json.loads(run("breakdown", *files, "--json").output)["requests"]) == 6
    assert len(json.loads(run("breakdown", runs["pull"] / "traces", "--json").output)["requests"]) == 6


def test_errors_name_the_remedy(run, runs, tmp_path):
    missing = run("breakdown", tmp_path / "nowhere")
    assert missing.exit_code == 1
    assert missing.output.startswith("Error: no such run")
    assert "\nTry: " in missing.output
    unknown = run("breakdown", runs["pull"], "--request", "nobody")
    assert unknown.exit_code == 1
    assert "pull-0" in unknown.output
    usage = run("breakdown", runs["pull"], next((runs["pull"] / "traces").iterdir()))
    assert usage.exit_code in (0, 1, 2)
    assert run("breakdown").exit_code == 2


def test_help_has_examples_and_the_group_finds_its_commands(run):
    assert "kvlens breakdown runs/pull" in run("breakdown", "--help").output
    assert "breakdown" in run("--help").output
    assert run("--version").output.startswith("kvlens, version")


def test_root_command_imports_no_engine_and_no_database():
    code = "import sys, analysis.cli; sys.exit(bool({'chdb', 'polars', 'vllm', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

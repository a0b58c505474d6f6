"""`kvlens dashboards check`: every query against a real Prometheus and against recorded runs in chDB."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from endpoint import serve_pair

from dashboards.build import build
from dashboards.command import dashboards
from dashboards.config import Config
from dashboards.targets import SQL, Target, find_targets
from lab.ports import pick_free

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)")
RUNS = ROOT / "tests/fixtures/runs"


def write_config(folder: Path, target: str) -> Path:
    files = build(Config())
    for kind in ("recording", "alerts"):
        # Groups are evaluated every 30 s or 60 s on a fleet; here there is no time for that.
        text = (
            files[f"rules/kvlens-{kind}.yaml"]
            .replace("interval: 30s", "interval: 1s")
            .replace("interval: 60s", "interval: 1s")
        )
        (folder / f"{kind}.yaml").write_text(text, encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["recording.yaml", "alerts.yaml"],
        "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    return folder / "prometheus.yml"


def ask(address: str, query: str) -> list[Any]:
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?query={query}", timeout=5) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
    except (urllib.error.URLError, OSError):
        return []


def serve(folder: Path, target: int) -> Iterator[str]:
    [port] = pick_free(1)
    config = write_config(folder, f"127.0.0.1:{target}")
    arguments = [
        "nice",
        "-n",
        "19",
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(arguments, cwd=folder)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if ask(address, "kvlens:wire_seconds:p99%20offset%2010s"):
                break
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_pair() as target:
        yield from serve(tmp_path_factory.mktemp("prometheus"), target)


def run_check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(dashboards, ["check", *arguments])
    return done.exit_code, done.output


@needs_prometheus
def test_every_query_of_every_panel_and_rule_has_data(prometheus: str) -> None:
    code, output = run_check("--prometheus", prometheus, "--baseline", "5s", "--json")
    queries = json.loads(output)["queries"]
    assert [f"{q['where']}: {q['detail']}" for q in queries if q["state"] in {"failed", "empty"}] == []
    assert code == 0
    expected = [target for target in find_targets(Config(), build(Config())) if target.kind in {"promql", "alert"}]
    assert sum(q["state"] == "ok" for q in queries) == len(expected)


@needs_prometheus
def test_a_range_has_the_rows_of_all_its_moments(prometheus: str) -> None:
    wishes = ["--last", "20s", "--at", f"{time.time():.0f}", "--baseline", "5s", "--window", "10s", "--all"]
    code, output = run_check("--prometheus", prometheus, *wishes)
    lines = output.splitlines()
    assert code == 0, output
    assert "OK      kvlens-overview / Bytes moved / A (promql): 1 rows" in lines
    assert sum(line.startswith("OK ") for line in lines) > 100


@needs_prometheus
def test_empty_and_failing_queries_are_named(prometheus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [
        Target("board / Broken / A", "promql", "sum(rate("),
        Target("board / Absent / A", "promql", 'kvlens_no_such_metric{mode="kvlens_x"}'),
        Target("board / Unfit / A", "promql", 'kvlens_held_blocks{reason="nothing"}'),
        Target("group / Alert", "alert", "kvlens_held_blocks > 1e12"),
        Target("group / BlindAlert", "alert", "kvlens_no_such_metric > 1"),
    ]
    monkeypatch.setattr("dashboards.targets.find_targets", lambda *_: bad)
    code, output = run_check("--prometheus", prometheus)
    assert code == 1
    lines = output.splitlines()
    assert lines[0].startswith("FAILED  board / Broken / A (promql): ")
    assert "parse error" in lines[0]
    assert lines[1] == "EMPTY   board / Absent / A (promql): no series kvlens_no_such_metric"
    assert lines[2] == "EMPTY   board / Unfit / A (promql): series are there, none fits"
    assert lines[3] == "EMPTY   group / BlindAlert (alert): no series kvlens_no_such_metric"
    assert lines[4] == "3 empty, 1 failed, 1 ok"


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_every_sql_query_runs_on_a_recorded_run(mode: str) -> None:
    code, output = run_check("--run", str(RUNS / mode), "--json", "--allow-empty")
    assert code == 0, output
    queries = [query for query in json.loads(output)["queries"] if query["kind"] == SQL]
    assert {query["state"] for query in queries} == {"ok"}, queries
    assert len(queries) == sum(target.kind == SQL for target in find_targets(Config(), build(Config())))


def test_failing_sql_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [Target("board / Broken / A", "sql", "SELECT nothing FROM otel_traces")]
    monkeypatch.setattr("dashboards.targets.find_targets", lambda *_: bad)
    code, output = run_check("--run", str(RUNS / "push"), "--allow-empty")
    assert code == 1
    assert output.startswith("FAILED  board / Broken / A (sql): ")


def test_check_needs_something_to_check_against() -> None:
    code, output = run_check()
    assert code == 2
    assert "--prometheus" in output


def test_no_prometheus_is_said_plainly() -> None:
    code, output = run_check("--prometheus", f"http://127.0.0.1:{pick_free(1)[0]}")
    assert code == 1
    assert "no Prometheus at" in output


def test_export_writes_what_was_asked(tmp_path: Path) -> None:
    wishes = [
        "--kubernetes",
        "obs",
        "--transfer-floor",
        "5e9",
        "--runbooks",
        "https://runbooks",
        "--prometheus",
        "http://p",
    ]
    done = CliRunner().invoke(dashboards, ["export", "--out", str(tmp_path), *wishes])
    assert done.exit_code == 0, done.output
    alerts = (tmp_path / "rules/kvlens-alerts.yaml").read_text(encoding="utf-8")
    assert "< 5e+09" in alerts
    assert "https://runbooks/KvlensTransferRateLow.md" in alerts
    assert '"http://p"' in (tmp_path / "provisioning/datasources/kvlens.yaml").read_text(encoding="utf-8")
    assert (tmp_path / "configmaps.yaml").exists()


def test_build_shows_what_differs(tmp_path: Path) -> None:
    assert CliRunner().invoke(dashboards, ["build", "--out", str(tmp_path)]).exit_code == 0
    assert CliRunner().invoke(dashboards, ["build", "--out", str(tmp_path), "--diff"]).exit_code == 0
    (tmp_path / "kvlens-wire.json").unlink()
    done = CliRunner().invoke(dashboards, ["build", "--out", str(tmp_path), "--diff"])
    assert done.exit_code == 1
    assert "kvlens-wire.json" in done.output

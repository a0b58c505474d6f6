"""Metrics in vLLM's own /metrics on real engines: equal to the spans of the same run."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pairs import LEASE_S
from scrapes import only_kvlens, read_metrics, run_prometheus, scrape, wait_for_agreement

from instrumented_connectors.metrics.catalogue import BY_NAME, DECISIONS, FAILURES, METRICS
from lab.engine import Engine
from lab.model import SERVED_NAME
from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
LOAD = Workload(requests=10, rate=2.0, input_lens=(100, 600), output_len=8, seed=3, id_prefix="metrics")
# What the runs of this file can't feed: no decisions yet, and nothing fails in them.
UNFED = {DECISIONS.name, FAILURES.name}


@pytest.fixture(scope="module")
def pair(shared_pair: Pair) -> Pair:
    return shared_pair


def prefill_only(pair: Pair, request_id: str) -> None:
    """Let P compute a prompt that no decoder ever asks for."""
    body = {
        "model": SERVED_NAME, "prompt": list(range(5, 105)), "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    request = urllib.request.Request(f"{pair.prefill.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def value(engine: Engine, name: str, *labels: str) -> Any:
    return read_metrics(scrape(engine)).get((f"kvlens_{name}", labels), 0.0)


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


@pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="no Prometheus: apt-get install prometheus")
def test_a_real_prometheus_sees_what_the_spans_say(
    pair: Pair, tmp_path: Path, report: Callable[[str], None]
) -> None:  # fmt: skip
    targets = {engine.role: engine.url.removeprefix("http://") for engine in pair.engines}
    assert PROMETHEUS is not None
    missing = value(pair.decode, "expected_remote_missing_total")
    with run_prometheus(PROMETHEUS, targets, tmp_path) as prometheus:
        records = pair.run_workload(LOAD)
        assert [record["error"] for record in records] == [None] * LOAD.requests
        pair.generate(range(5, 50), 2, "decode")  # no transfer parameters: expected remote, got none
        assert wait_for_agreement(pair) == []
        time.sleep(3)  # a scrape later
        names = {labels["__name__"] for labels, _ in prometheus.query('{__name__=~"kvlens_.+"}')}
        fed = {metric.name for metric in METRICS if metric.applies("prefill", pair.mode)}
        fed |= {metric.name for metric in METRICS if metric.applies("decode", pair.mode)}
        suffix = {name: name if BY_NAME[name].kind != "histogram" else f"{name}_bucket" for name in fed - UNFED}
        assert {name for name in suffix.values() if name not in names} == set()
        shares = {
            labels["class"]: share
            for labels, share in prometheus.query(
                "sum by (class) (kvlens_handover_seconds_total) / on() group_left sum(kvlens_handover_seconds_total)"
            )
        }
        assert sum(shares.values()) == pytest.approx(1)
        assert {name for name, share in shares.items() if share > 0} >= {"queue", "compute", "coordination", "transfer"}
        rate = prometheus.scalar("sum(kvlens_transferred_bytes_total) / sum(kvlens_transfer_seconds_total)")
        assert rate > 1e6
        assert prometheus.scalar("sum(kvlens_expected_remote_missing_total)") == missing + 1
        counted = prometheus.query('count by (job) ({__name__=~"kvlens_.+", __name__!~".+_created"})')
        series = {labels["job"]: int(count) for labels, count in counted}
        bare = {labels["job"]: int(count) for labels, count in prometheus.query(
            'count by (job) ({__name__=~"kvlens_.+", __name__!~".+_(created|bucket)"})')}  # fmt: skip
    assert max(series.values()) < 500
    parts = ", ".join(f"{name} {share:.2f}" for name, share in sorted(shares.items()))
    report(f"{pair.mode}: kvlens series {series}, without buckets {bare}; shares {parts}; {rate / 1e6:.0f} MB/s")


def test_promtool_and_the_stock_metrics(pair: Pair) -> None:
    for engine in pair.engines:
        text = scrape(engine)
        assert PROMTOOL is not None
        command = [PROMTOOL, "check", "metrics"]
        done = subprocess.run(command, input=only_kvlens(text).encode(), capture_output=True, check=False)
        assert (done.returncode, (done.stdout + done.stderr).decode()) == (0, "")
        assert "request_id" not in text
        assert "cmpl-" not in only_kvlens(text)
    poster = pair.prefill if pair.mode == "push" else pair.decode
    found = read_metrics(scrape(poster))
    direction = "WRITE" if pair.mode == "push" else "READ"
    peer = (pair.decode if pair.mode == "push" else pair.prefill).id
    stock = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in scrape(poster).splitlines()
             if line.startswith("vllm:nixl_bytes_transferred_") and "_bucket" not in line}  # fmt: skip
    assert stock["vllm:nixl_bytes_transferred_count"] == found["kvlens_transfers_total", (direction, "UCX", peer, "ok")]
    assert stock["vllm:nixl_bytes_transferred_sum"] == found["kvlens_transferred_bytes_total", (direction, "UCX", peer)]
    # Only the side that posts has something for vLLM's own log line.
    other = pair.decode if pair.mode == "push" else pair.prefill
    assert "KV Transfer metrics" not in other.log.read_text()


def test_an_idle_engine_stays_idle(pair: Pair) -> None:
    def steps() -> list[float]:
        return [value(engine, "recorder_events_total", "scheduler", "recorded") for engine in pair.engines]

    before = steps()
    time.sleep(3)
    assert steps() == before
    pair.run_workload(Workload(requests=1, input_lens=(100,), output_len=2, id_prefix="wake"))
    # The last step's figures arrive without another request.
    assert wait_for_agreement(pair) == []


def test_why_leases_ended_is_told_by_the_worker(pair: Pair) -> None:
    kept = "sent" if pair.mode == "push" else "read"
    before = value(pair.prefill, "lease_seconds", "expired")
    assert not before or sum(before[1:]) == 0
    assert sum(value(pair.prefill, "lease_seconds", kept)[1:]) > LOAD.requests
    prefill_only(pair, "nobody-comes")
    assert wait_for(lambda: value(pair.prefill, "held_requests", "awaiting_transfer") == 1, 4.0)
    blocks = value(pair.prefill, "held_blocks", "awaiting_transfer")
    assert blocks >= 3
    assert wait_for(lambda: value(pair.prefill, "oldest_held_seconds", "awaiting_transfer") > 1, 6.0)
    if pair.mode == "push":
        assert value(pair.prefill, "push_waiting_requests", "blocks", "0") == 1
    assert wait_for(lambda: value(pair.prefill, "held_requests", "awaiting_transfer") == 0, LEASE_S + 10.0)
    assert wait_for_agreement(pair) == []
    cells = value(pair.prefill, "lease_seconds", "expired")
    assert sum(cells[1:]) == 1
    assert LEASE_S - 0.5 <= cells[0] <= LEASE_S + 3
    assert value(pair.prefill, "oldest_held_seconds", "awaiting_transfer") == 0

"""A real pair exports to a real collector, also while that is stopped, restarted or frozen; a sampled pair agrees."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from instrumented_connectors.identity import derive_trace_id
from instrumented_connectors.sampling import make_decision
from lab.engine import SERVING_ARGUMENTS, Engine
from lab.model import SERVED_NAME
from lab.run import Pair
from lab.workload import Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "connectors"))

from collectors import HttpCollector, Rotel, read_files, wait_until
from pairs import read_spans

pytestmark = pytest.mark.engine

COUNTS = re.compile(
    r"process=(\d+) kvlens: exporter=(\S+) produced=(\d+) exported=(\d+) dropped=(\d+) failed=(\d+) queued=(\d+)"
)
PHASES = ("up", "stopped", "restarted", "paused", "resumed")
OUTAGES = ("stopped", "paused")
REQUESTS = 16
# Small enough that what an engine produces while one call times out overflows it.
QUEUE_SIZE = 48
TIMEOUT_S = 3
LOGGING = {
    "version": 1,
    "formatters": {"process": {"format": "process=%(process)d %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "process"}},
    "loggers": {name: {"handlers": ["out"], "level": "INFO"} for name in ("vllm", "kvlens")},
}


Account = dict[str, tuple[int, ...]]
"""Exporter -> (produced, exported, dropped, failed, queued) of one process."""


@pytest.fixture(scope="module", autouse=True)
def graceful_end() -> Iterator[None]:
    """By default vLLM kills its engine processes when the server is asked to end, and nobody can count after that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.engine.SERVING_ARGUMENTS", (*SERVING_ARGUMENTS, "--shutdown-timeout=10"))
        yield


@dataclass
class Outage:
    """What one pair did through all phases."""

    mode: str
    records: list[dict[str, Any]] = field(default_factory=list)
    cpu_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    rss_mib: dict[str, dict[str, float]] = field(default_factory=dict)
    accounts: dict[str, list[Account]] = field(default_factory=dict)
    written: dict[str, list[Any]] = field(default_factory=dict)
    received: list[Any] = field(default_factory=list)
    equal_while_up: int = 0

    def total(self, column: int) -> int:
        """Return one column of all processes' OTLP accounts."""
        return sum(account["otlp"][column] for accounts in self.accounts.values() for account in accounts)


@pytest.fixture(scope="module", params=[("push", "grpc"), ("pull", "http/protobuf")], ids=lambda param: param[0])
def outage(
    request: pytest.FixtureRequest, start_pair: Callable[..., Pair], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outage]:
    mode, protocol = request.param
    folder = tmp_path_factory.mktemp("export")
    (folder / "logging.json").write_text(json.dumps(LOGGING))
    with HttpCollector() as sink, Rotel(sink, folder) as rotel:
        env = {
            "OTEL_TRACES_EXPORTER": "otlp,kvlens",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.grpc_endpoint if protocol == "grpc" else rotel.http_endpoint,
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(TIMEOUT_S),
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE_SIZE),
            "VLLM_LOGGING_CONFIG_PATH": str(folder / "logging.json"),
        }
        pair = start_pair(mode, env=env)
        pair.warm_up((200,))
        result = Outage(mode)
        go_through_phases(pair, rotel, sink, result)
        end_gracefully(pair)
        pair.stop()
        result.accounts = {engine.id: read_accounts(engine.log) for engine in pair.engines}
        result.written = {engine.id: read_files(pair.out / "traces", engine.id) for engine in pair.engines}
        wait_until(lambda: len(set(sink.spans)) >= result.total(1))
        result.received = list(sink.spans)
        yield result


def go_through_phases(pair: Pair, rotel: Rotel, sink: HttpCollector, result: Outage) -> None:
    changes: dict[str, Callable[[], None]] = {
        "stopped": rotel.stop,
        "restarted": rotel.start,
        "paused": rotel.pause,
        "resumed": rotel.resume,
    }
    for phase in PHASES:
        changes.get(phase, lambda: None)()
        before = measure_cpu(pair)
        workload = Workload(
            requests=REQUESTS, concurrency=2, input_lens=(200,), output_len=8, seed=5, id_prefix=f"{pair.mode}-{phase}"
        )
        ends = time.monotonic() + 2 * TIMEOUT_S
        result.records += pair.run_workload(workload)
        after = measure_cpu(pair)
        if phase in OUTAGES:
            # An export that is tried again until the collector is back has not failed: let one run out of time.
            time.sleep(max(0.0, ends - time.monotonic()))
        result.cpu_ms[phase] = {role: (after[role] - before[role]) / REQUESTS for role in after}
        result.rss_mib[phase] = {
            engine.role: sum(process.memory_info().rss for process in processes_of(engine)) / 2**20
            for engine in pair.engines
        }
        if phase == "up":
            result.equal_while_up = wait_equal(pair, sink)


def end_gracefully(pair: Pair) -> None:
    """Ask the servers to end, and only them: a second SIGTERM kills an engine process that is shutting down."""
    processes = [process for engine in pair.engines for process in processes_of(engine)]
    for engine in pair.engines:
        os.kill(engine.pid, signal.SIGTERM)
    # An engine takes up to 7 s to end, and vLLM kills it after 10. Should it hang, its log says where. The signal also
    # wakes a main thread that waits for work where another thread took the first signal: Python acts in the main one.
    _, ending = psutil.wait_procs(processes, timeout=4)
    for process in ending:
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith("VLLM"):
                process.send_signal(signal.SIGUSR1)
    _, alive = psutil.wait_procs(ending, timeout=60)
    assert not alive
    for engine in pair.engines:
        text = engine.log.read_text(errors="replace")
        stacks = text[text.find("Thread 0x") :][:8000]
        assert "force killing" not in text, f"{engine.id} did not end when asked:\n{stacks}"


def wait_equal(pair: Pair, sink: HttpCollector) -> int:
    """Wait until files and collector hold the same spans; return how many."""
    found: set[Any] = set()

    def is_equal() -> bool:
        found.clear()
        found.update(*(read_files(pair.out / "traces", engine.id) for engine in pair.engines))
        return len(found) > REQUESTS and found == set(sink.spans)

    assert wait_until(is_equal), "files and collector differ with nothing in the way"
    return len(found)


def processes_of(engine: Engine) -> list[psutil.Process]:
    """Return the processes of an engine beside its server: scheduler and worker."""
    return psutil.Process(engine.pid).children(recursive=True)


def measure_cpu(pair: Pair) -> dict[str, float]:
    """Return the CPU time (ms) so far of each engine's engine threads: the main ones of its processes."""
    return {
        engine.role: sum(read_main_thread_ns(process.pid) for process in processes_of(engine)) / 1e6
        for engine in pair.engines
    }


def read_main_thread_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def read_accounts(log: Path) -> list[Account]:
    """Return the last account that each process of an engine logged."""
    accounts: dict[str, Account] = {}
    for process, name, *numbers in COUNTS.findall(log.read_text(errors="replace")):
        accounts.setdefault(process, {})[name] = tuple(map(int, numbers))
    return list(accounts.values())


def test_all_requests_are_served(outage: Outage) -> None:
    assert len(outage.records) == len(PHASES) * REQUESTS
    assert [record["error"] for record in outage.records if record["error"]] == []


def test_the_account_is_exact(outage: Outage, report: Callable[[str], None]) -> None:
    for engine, accounts in outage.accounts.items():
        # The scheduler's process and the worker's, each with its own exporters.
        assert len(accounts) == 2
        for account in accounts:
            assert set(account) == {"otlp", "kvlens"}
            for produced, exported, dropped, failed, queued in account.values():
                assert produced == exported + dropped + failed
                assert queued == 0
            assert account["otlp"][0] == account["kvlens"][0] == account["kvlens"][1]
        # The files lose nothing, whatever the collector does, and hold exactly what was produced.
        assert sum(account["kvlens"][1] for account in accounts) == len(outage.written[engine])
        names = ("produced", "exported", "dropped", "failed")
        for account in accounts:
            report(f"{outage.mode} {engine}: otlp " + ", ".join(map("{} {}".format, names, account["otlp"])))
    assert outage.total(2) > 0, "no queue overflowed"
    assert outage.total(3) > 0, "no export failed"


def test_the_collector_has_what_was_exported(outage: Outage, report: Callable[[str], None]) -> None:
    written = {key for keys in outage.written.values() for key in keys}
    received = set(outage.received)
    exported, failed = outage.total(1), outage.total(3)
    assert received <= written
    # A frozen collector's kernel takes requests that time out here and come out of it later: failed, yet received.
    assert exported <= len(received) <= exported + failed
    report(
        f"{outage.mode}: {outage.equal_while_up} spans equal in files and collector while it was up; in all "
        f"{len(received)} received of {len(written)} written, {exported} counted as exported"
    )


def test_engine_threads_and_memory_do_not_notice(outage: Outage, report: Callable[[str], None]) -> None:
    for role in ("prefill", "decode"):
        cpu = {phase: outage.cpu_ms[phase][role] for phase in PHASES}
        up = statistics.mean(cpu[phase] for phase in ("up", "restarted", "resumed"))
        down = statistics.mean(cpu[phase] for phase in ("stopped", "paused"))
        rss = [outage.rss_mib[phase][role] for phase in PHASES]
        report(
            f"{outage.mode} {role}: engine-thread CPU {up:.1f} ms per request with the collector, {down:.1f} without "
            f"(ratio {down / up:.3f}); resident {rss[0]:.0f} MiB after the first phase, {rss[-1]:.0f} after the last"
        )
        # Waiting for a collector on an engine thread would show as latency, not CPU; both are held.
        assert down < 1.3 * up
        # Pages that forked processes share count in each of them.
        assert rss[-1] < 1.05 * rss[0]
    latency = {
        phase: statistics.median(
            record["ttft_ms"] for record in outage.records if record["request_id"].startswith(f"{outage.mode}-{phase}-")
        )
        for phase in PHASES
    }
    report(f"{outage.mode}: median TTFT by phase " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in latency.items()))
    assert max(latency["stopped"], latency["paused"]) < 2 * latency["up"]


RATIO = 0.5
SLOW_MS = 2000.0
ROOTS = ("prefill", "decode")


def send(pair: Pair, prefix: str, requests: int, **more: Any) -> list[dict[str, Any]]:
    return pair.run_workload(Workload(requests=requests, input_lens=(200,), output_len=4, id_prefix=prefix, **more))


def test_a_sampled_pair_agrees_keeps_the_slow_and_shares_a_trace_with_vllm(
    start_pair: Callable[..., Pair], report: Callable[[str], None], tmp_path: Path
) -> None:
    env = {
        "OTEL_TRACES_EXPORTER": "otlp,kvlens",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(RATIO),
        "KVLENS_SAMPLE_KEEP_SLOW_MS": str(SLOW_MS),
    }
    with HttpCollector() as sink, Rotel(sink, tmp_path) as rotel:
        # vLLM's own tracing is on too: it goes to the same collector, through the host's global provider.
        pair = start_pair("pull", env=env, otlp_endpoint=rotel.grpc_endpoint)
        pair.warm_up((200,), count=3)
        records = send(pair, "fast", 24, concurrency=2)
        pair.set_faults({"prefill_compute": {"ms": SLOW_MS * 1.2}})
        records += send(pair, "slow", 6)
        pair.clear_faults()
        traced = send(pair, "traced", 4, traceparent=True)
        marked = send_marked(pair)
        # P notices the end of its leases when it takes its next step.
        records += send(pair, "last", 4)
        time.sleep(2)
        pair.stop()
        assert not [record for record in (*records, *traced) if record["error"]]
        spans = read_spans(pair.out)
        check_kept(spans, [record["request_id"] for record in records], report)
        check_private(pair, sink, marked)
        check_shared_traces(spans, sink, {record["trace_id"] for record in traced}, report)


MARK = "kvlens-private-mark"


def send_marked(pair: Pair) -> str:
    """Send a sampled request with marks in its prompt and headers; return its trace id."""
    trace = "0123456789abcdef0123456789abcdef"
    body = {"model": SERVED_NAME, "prompt": f"tell nobody: {MARK} " * 20, "max_tokens": 4, "user": f"{MARK}-user"}
    headers = {
        "Content-Type": "application/json",
        "traceparent": f"00-{trace}-0123456789abcdef-01",
        "tracestate": f"vendor={MARK}",
        "Authorization": f"Bearer {MARK}",
        "X-Forwarded-For": MARK,
    }
    request = urllib.request.Request(f"{pair.router_url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    return trace


def check_private(pair: Pair, sink: HttpCollector, trace: str) -> None:
    assert wait_until(lambda: {"prefill", "decode"} <= {key[2] for key in sink.spans if key[0] == trace})
    ours = [key for key in sink.spans if any(name.startswith("kv_transfer.") for name, _ in key[3])]
    assert MARK not in repr(ours)
    for path in pair.out.rglob("*.otlp.jsonl"):
        assert MARK not in path.read_text(), path


def check_kept(spans: list[dict[str, Any]], keys: list[str], report: Callable[[str], None]) -> None:
    roots = [span for span in spans if span["name"] in ROOTS and span["request_key"] in keys]
    kept = {name: {span["request_key"]: span.get("kept") for span in roots if span["name"] == name} for name in ROOTS}
    decide = make_decision("traceidratio", RATIO)
    assert decide is not None
    sampled = {key for key in keys if decide(derive_trace_id(key), None)}
    slow = {key for key in keys if key.startswith("slow")}
    assert slow - sampled, "the ids leave no slow request to keep"
    for name, reason in (("prefill", "slow"), ("decode", "hint")):
        assert sampled | slow <= set(kept[name])
        assert {kept[name][key] for key in sampled} == {None}
        assert {kept[name][key] for key in slow - sampled} == {reason}
    # The workers' spans are kept with the scheduler's, though they are processes of their own.
    wires = {span["request_key"] for span in spans if span["name"] == "wire"}
    assert sampled | slow <= wires
    assert not (set(keys) - sampled - slow) & wires
    # P and D keep the same requests, without a message about the sampled ones.
    assert set(kept["prefill"]) == set(kept["decode"])
    report(
        f"sampled pull pair: {len(sampled)} of {len(keys)} requests by ratio {RATIO}, {len(slow - sampled)} more kept "
        f"because prefill was slow: on P by itself, on D by its hint"
    )


def check_shared_traces(
    spans: list[dict[str, Any]], sink: HttpCollector, traces: set[str], report: Callable[[str], None]
) -> None:
    for name in (*ROOTS, "llm_request"):
        found = wait_until(lambda name=name: traces <= {key[0] for key in sink.spans if key[2] == name})
        assert found, f"no {name} in the callers' traces"
    ours = {
        key for key in sink.spans if key[0] in traces and any(name.startswith("kv_transfer.") for name, _ in key[3])
    }
    vllm = {key for key in sink.spans if key[0] in traces} - ours
    assert {span["trace"] for span in spans if span.get("request_key", "").startswith("traced")} == traces
    report(f"beside vLLM's tracing: {len(ours)} kvlens and {len(vllm)} vLLM spans in the {len(traces)} callers' traces")

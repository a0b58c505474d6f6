"""The front end's half: vLLM's Prometheus path with a registry of its own, several API servers, the stock log line."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from metric_processes import Process, values
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from test_metrics import make_stock, push_on_worker, read_on_worker

from instrumented_connectors.connectors import NixlPullConnector, NixlPushConnector
from instrumented_connectors.metrics import catalogue as table
from instrumented_connectors.metrics.bridge import add_to_histogram
from instrumented_connectors.metrics.catalogue import COUNTER, GAUGE, HISTOGRAM, METRICS
from instrumented_connectors.metrics.stats import KEY, take_payloads
from instrumented_connectors.metrics.window import LabelBounds, Window

PROMTOOL = shutil.which("promtool")


def make_config(role: str = "kv_producer", **extra: Any) -> Any:
    transfer = SimpleNamespace(
        kv_role=role, kv_connector="NixlPullConnector", kv_connector_module_path="instrumented_connectors",
        get_from_extra_config=extra.get,
    )  # fmt: skip
    return SimpleNamespace(kv_transfer_config=transfer)


def build(connector: Any, registry: CollectorRegistry, config: Any, engines: int = 1) -> Any:
    types = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    engine_labels: dict[int, list[object]] = {index: ["model", str(index)] for index in range(engines)}
    return connector.build_prom_metrics(config, types, ["model_name", "engine"], engine_labels)


def full_payload() -> dict[str, Any]:
    """Every metric of the table, every histogram with values in, between and beyond its buckets."""
    window = Window(LabelBounds())
    for metric in METRICS:
        labels = tuple(f"{name}-value" for name in metric.labels)
        for value in (metric.buckets[0], metric.buckets[-1] * 2, metric.buckets[3] * 1.1) if metric.buckets else (3.0,):
            window.add(metric, labels, value)
    return window.to_payload()


def read_samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("kvlens_") and not sample.name.endswith("_created")
    }


def observe(metrics: Any, payloads: list[dict[str, Any]], engine: int = 0) -> None:
    metrics.observe({**make_stock(0).data, KEY: payloads}, engine)


def test_every_metric_of_the_table_arrives() -> None:
    registry = CollectorRegistry()
    observe(build(NixlPushConnector, registry, make_config()), [full_payload(), full_payload()])
    samples = read_samples(registry)
    own = ("model_name", "model"), ("engine", "0")
    for metric in METRICS:
        labels = tuple(sorted((*own, *((name, f"{name}-value") for name in metric.labels))))
        if metric.kind == COUNTER:
            assert samples[metric.name, labels] == 6
        elif metric.kind == GAUGE:
            assert samples[metric.name, labels] == 3
        else:
            assert samples[f"{metric.name}_count", labels] == 6
            le = str(metric.buckets[0])
            assert samples[f"{metric.name}_bucket", tuple(sorted((*labels, ("le", le))))] == 2


def test_histograms_hold_what_observing_would_have_put_there() -> None:
    seen = (0.00005, 0.0001, 0.0002, 0.3, 59.0, 60.0, 61.0, 0.0)
    window = Window(LabelBounds())
    for value in seen:
        window.add(table.SEGMENT_SECONDS, ("pull", "wire"), value)
    (cells,) = window.to_payload()["h"].values()
    registries = []
    for fill in ("cells", "observe"):
        registry = CollectorRegistry()
        histogram = Histogram("x_seconds", "x", buckets=table.SECONDS_BUCKETS, registry=registry)
        if fill == "cells":
            add_to_histogram(histogram, table.SEGMENT_SECONDS, cells)
        else:
            for value in seen:
                histogram.observe(value)
        registries.append({s.name + str(s.labels): s.value for f in registry.collect() for s in f.samples})
    for key, value in registries[1].items():
        if "_created" not in key:
            assert registries[0][key] == pytest.approx(value), key


def test_another_librarys_histogram_gets_one_observation_per_count() -> None:
    observed: list[float] = []
    window = Window(LabelBounds())
    for value in (0.0002, 0.0002, 100.0):
        window.add(table.SEGMENT_SECONDS, ("pull", "wire"), value)
    (cells,) = window.to_payload()["h"].values()
    add_to_histogram(SimpleNamespace(observe=observed.append), table.SEGMENT_SECONDS, cells)
    assert observed == [0.00025, 0.00025, 60.0]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
def test_promtool_has_nothing_to_say() -> None:
    registry = CollectorRegistry()
    observe(build(NixlPushConnector, registry, make_config()), [full_payload()])
    # vLLM's own names with a colon would be complained about.
    for collector in list(registry._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("vllm:"):
            registry.unregister(collector)
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_counters_exist_from_the_start_where_they_can_be_fed() -> None:
    def names(connector: Any, config: Any) -> set[str]:
        registry = CollectorRegistry()
        build(connector, registry, config)
        return {name for name, _ in read_samples(registry)}

    push_p, pull_d = names(NixlPushConnector, make_config()), names(NixlPullConnector, make_config("kv_consumer"))
    assert "kvlens_pairings_total" in push_p - pull_d
    assert {"kvlens_expected_remote_missing_total", "kvlens_remote_loads_total"} <= pull_d - push_p
    assert "kvlens_decisions_total" not in push_p | pull_d


def test_data_parallel_engines_are_kept_apart() -> None:
    registry = CollectorRegistry()
    metrics = build(NixlPullConnector, registry, make_config("kv_consumer"), engines=2)
    worker = Process("decode", "pull", scheduler=False)
    worker.feed(*read_on_worker())
    observe(metrics, take_payloads(worker.deliver()), engine=1)
    found = [(dict(labels)["engine"], value) for (name, labels), value in read_samples(registry).items()
             if name == "kvlens_transferred_bytes_total"]  # fmt: skip
    assert found == [("1", 40960)]


def test_peers_are_bounded_in_the_front_end_too() -> None:
    registry = CollectorRegistry()
    metrics = build(NixlPullConnector, registry, make_config("kv_consumer"))
    for batch in range(4):
        window = Window(LabelBounds())
        for index in range(table.MAX_PEERS):
            window.add(table.TRANSFERRED_BYTES, ("READ", "UCX", f"engine-{batch}-{index}"), 1)
        observe(metrics, [window.to_payload()])
    found = {dict(labels)["peer"]: value for (name, labels), value in read_samples(registry).items()
             if name == "kvlens_transferred_bytes_total"}  # fmt: skip
    assert len(found) == table.MAX_PEERS + 1
    assert found[table.OVERFLOW] == 3 * table.MAX_PEERS


def test_a_front_end_without_kvlens_ignores_the_payload() -> None:
    """The stock metrics read the same data when only the workers are recorded."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlPromMetrics

    registry = CollectorRegistry()
    types: Any = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    observe(NixlPromMetrics(make_config(), types, ["model_name", "engine"], {0: ["m", "0"]}), [full_payload()])
    assert not read_samples(registry)


def test_stock_metrics_have_the_same_values_with_and_without_a_payload() -> None:
    texts = []
    for payloads in ([], [full_payload()]):
        registry = CollectorRegistry()
        metrics = build(NixlPullConnector, registry, make_config("kv_consumer"))
        metrics.observe({**make_stock(1).data, KEY: payloads})
        lines = generate_latest(registry).decode().splitlines()
        texts.append([line for line in lines if line.startswith("vllm:") and "_created" not in line])
    assert texts[0] == texts[1]
    assert any("nixl_bytes_transferred_count" in line and line.endswith(" 1.0") for line in texts[0])


def test_the_stock_log_line_is_the_same() -> None:
    """vLLM logs what the stats reduce to, when they aren't empty: ours alone must not make it log."""
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

    worker = Process("prefill", "push", scheduler=False)
    worker.feed(*push_on_worker())
    ours = worker.deliver()
    logs: list[list[Any]] = []
    for steps in ([ours.to_dict()], [make_stock(1).data, ours.to_dict()], [ours.to_dict(), make_stock(1).data]):
        log: Any = KVConnectorLogging(None)
        log.connector_cls = NixlPushConnector
        lines: list[Any] = []
        for step in steps:
            log.observe({**{key: list(value) for key, value in step.items()}})
        log.log(lambda *line, lines=lines: lines.append(line))
        logs.append(lines)
    stock = make_stock(1).reduce()
    assert logs[0] == []
    assert logs[1] == logs[2] == [("KV Transfer metrics: %s", ", ".join(f"{k}={v}" for k, v in stock.items()))]


def test_a_second_logger_in_one_process_replaces_the_first() -> None:
    """vLLM makes a new one when it scales; names may be registered once only."""
    types: Any = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    for _ in range(2):
        from vllm.v1.metrics.prometheus import unregister_vllm_metrics

        unregister_vllm_metrics()
        metrics = NixlPullConnector.build_prom_metrics(
            make_config("kv_consumer"), types, ["model_name", "engine"], {0: ["model", "0"]}
        )
        assert metrics._bridge is not None
        observe(metrics, [full_payload()])
    unregister_vllm_metrics()


FRONT_END = """
import json, sys
from prometheus_client import Counter, Gauge, Histogram
from instrumented_connectors.metrics.bridge import PromBridge
classes = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
bridge = PromBridge(classes, ["model_name", "engine"], {0: ["model", "0"]}, "decode", "pull")
for payload in json.load(sys.stdin):
    bridge.observe([payload], 0)
"""


def test_several_api_servers_add_up(tmp_path: Path) -> None:
    """Each payload goes to one of three front-end processes; the multiprocess registry shows each increment once."""
    from prometheus_client import multiprocess

    def payload(count: int, held: int) -> dict[str, Any]:
        window = Window(LabelBounds())
        for _ in range(count):
            window.add(table.SEGMENT_SECONDS, ("pull", "wire"), 0.02)
            window.add(table.HANDSHAKES, ("ok",), 1)
        window.add(table.HELD_BLOCKS, ("awaiting_arrival",), held)
        return window.to_payload()

    for counts in ([3, 1], [2], [4, 5]):
        subprocess.run(
            [sys.executable, "-c", FRONT_END], text=True, check=True,
            input=json.dumps([payload(count, held=count) for count in counts]),
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )  # fmt: skip
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    samples = {(name, *(v for k, v in labels if k in {"outcome", "reason"})): value
               for (name, labels), value in read_samples(registry).items() if "le" not in dict(labels)}  # fmt: skip
    assert samples["kvlens_segment_seconds_count",] == 15
    assert samples["kvlens_segment_seconds_sum",] == pytest.approx(0.3)
    assert samples["kvlens_handshakes_total", "ok"] == 15
    assert samples["kvlens_held_blocks", "awaiting_arrival"] == 5, "not the most recent one"
    assert values([payload(1, 1)], "handshakes_total") == {("ok",): 1}


def test_kinds_and_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith(table.PREFIX)
        assert metric.name.endswith("_total") == (metric.kind == COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind == HISTOGRAM), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert set(metric.bounds) <= set(metric.labels)
        assert not {"request_id", "trace_id", "le", "quantile"} & set(metric.labels)
        for labels in metric.presets:
            assert len(labels) == len(metric.labels), metric.name
    assert len({metric.name for metric in METRICS}) == len(METRICS)

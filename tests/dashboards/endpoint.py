"""A scrape target with every metric of the catalogue, growing with each scrape as on a busy pair."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from instrumented_connectors.metrics import catalogue as table

VALUES = {
    "mode": ("push",),
    "segment": tuple(table.SEGMENTS),
    "class": table.CLASSES,
    "side": table.SIDES,
    "status": ("finished",),
    "direction": ("WRITE",),
    "backend": ("UCX",),
    "peer": ("d0",),
    "waiting": ("blocks", "registrations"),
    "rank": ("0",),
    "type": ("transfer_failed",),
    "process": ("worker", "scheduler"),
    "state": ("produced", "exported", "dropped"),
    "exporter": ("file",),
    "version": ("1",),
    "engine_id": ("p0",),
    "role": ("prefill",),
}
OUTCOMES = {"kvlens_lease_seconds": ("sent", "expired"), "kvlens_recorder_events_total": ("recorded", "dropped")}
VLLM = {"model_name": "m", "engine": "0"}
EFA = [
    "tx_bytes",
    "tx_pkts",
    "send_bytes",
    "rdma_read_bytes",
    "rdma_read_resp_bytes",
    "rdma_write_bytes",
    "rdma_write_recv_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
    "rx_drops",
]


def choose(metric: table.Metric, label: str) -> tuple[str, ...]:
    if label == "reason":
        return tuple(table.HELD_REASONS) if "held" in metric.name else ("fetch",)
    return OUTCOMES.get(metric.name, ("ok", "paired")) if label == "outcome" else VALUES[label]


class Pair:
    """Collect the metrics of one engine, of `kvlens metrics` and of an EFA device."""

    def __init__(self) -> None:
        self._scrapes = 0

    def collect(self) -> Iterator[Metric]:
        self._scrapes += 1
        for metric in table.METRICS:
            yield self._family(metric, metric.name, VLLM)
        for metric in (table.SEGMENT_SECONDS, table.TIME_TO_FIRST_TOKEN):
            name = f"kvlens_traced_{metric.name.removeprefix('kvlens_')}"
            yield self._family(metric, name, {"engine_id": "p0", "role": "prefill"})
        yield self._single(CounterMetricFamily("kvlens_traced_spans", "."), {})
        yield self._single(GaugeMetricFamily("kvlens_efa_devices", "."), {})
        for counter in EFA:
            yield self._single(GaugeMetricFamily(f"node_amazonefa_{counter}", "."), {"device": "rdmap0", "port": "1"})
        yield self._single(GaugeMetricFamily("node_amazonefa_link_up", "."), {"device": "rdmap0", "port": "1"})
        for name in ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            yield self._single(GaugeMetricFamily(name, "."), VLLM)
        latency = table.Metric("vllm:inter_token_latency_seconds", table.HISTOGRAM, ".", (), (0.01, 0.1))
        yield self._family(latency, latency.name, VLLM)

    def describe(self) -> list[Metric]:
        return []

    def _single(self, family: Any, labels: dict[str, str]) -> Metric:
        family.add_sample(family.name + ("_total" if family.type == "counter" else ""), labels, 10.0 * self._scrapes)
        return family

    def _family(self, metric: table.Metric, name: str, common: dict[str, str]) -> Metric:
        kinds = {
            table.COUNTER: CounterMetricFamily,
            table.GAUGE: GaugeMetricFamily,
            table.HISTOGRAM: HistogramMetricFamily,
        }
        family = kinds[metric.kind](name, metric.doc)
        for values in product(*(choose(metric, label) for label in metric.labels)):
            labels = {**common, **dict(zip(metric.labels, values, strict=True))}
            if metric.kind == table.HISTOGRAM:
                self._observe(family, name, labels, metric.buckets)
            else:
                family.add_sample(name, labels, 5.0 * self._scrapes)
        return family

    def _observe(self, family: Any, name: str, labels: dict[str, str], bounds: tuple[float, ...]) -> None:
        for n, bound in enumerate((*map(str, bounds), "+Inf"), start=1):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, float(n * self._scrapes))
        family.add_sample(f"{name}_count", labels, float((len(bounds) + 1) * self._scrapes))
        family.add_sample(f"{name}_sum", labels, 0.1 * self._scrapes)


@contextmanager
def serve_pair() -> Iterator[int]:
    """Serve the plain text format, as vLLM does, and yield the port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Pair())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = generate_latest(registry)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

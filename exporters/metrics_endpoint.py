"""`kvlens metrics`: the histograms of the hand-over with trace ids as exemplars, in OpenMetrics.

vLLM's `/metrics` can't carry exemplars with several API servers, so this reads the span files beside the engines. Its
names begin with `kvlens_traced_`: a sum over all engines' `/metrics` must not count the same seconds twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rich_click as click
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest

from instrumented_connectors import catalogue as spans
from instrumented_connectors.metrics.catalogue import HISTOGRAM, METRICS, PREFIX, TIME_TO_FIRST_TOKEN, Metric
from instrumented_connectors.metrics.measure import measure

from .efa.command import catch_signals, fail, format_address, parse_listen
from .span_tail import SpanRecord, SpanTail, read_attributes

DEFAULT_LISTEN = "127.0.0.1:9470"
TRACED_PREFIX = f"{PREFIX}traced_"
IDENTITY = ("engine_id", "role")
TRACED = (*(metric for metric in METRICS if metric.kind == HISTOGRAM), TIME_TO_FIRST_TOKEN)
MAX_SERIES = 20_000
"""Label combinations kept at most; further ones are counted and left out."""


def traced_name(metric: Metric) -> str:
    """Return the name under which this endpoint serves a metric."""
    return TRACED_PREFIX + metric.name.removeprefix(PREFIX)


class TracedHistograms:
    """Histograms fed by spans; every observation leaves its trace id on its bucket.

    Args:
        registry: holds them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histograms = {
            metric.name: Histogram(
                traced_name(metric), metric.doc, [*IDENTITY, *metric.labels], buckets=metric.buckets, registry=registry
            )
            for metric in TRACED
        }
        self._spans = Counter(f"{TRACED_PREFIX}spans", "Spans read from files.", registry=registry)
        self._left_out = Counter(
            f"{TRACED_PREFIX}left_out_observations", "Observations beyond the bound on series.", registry=registry
        )
        self._series: set[tuple[str, ...]] = set()

    def add(self, records: Iterable[SpanRecord]) -> None:
        """Observe spans."""
        for about, span in records:
            self._spans.inc()
            identity = (str(about.get("service.instance.id", "")), str(about.get("kvlens.role", "")))
            for metric, labels, value in measure_record(about, span):
                if metric.name in self._histograms:
                    self._observe(metric, (*identity, *labels), value, str(span.get("traceId", "")))

    def _observe(self, metric: Metric, labels: tuple[str, ...], value: float, trace_id: str) -> None:
        key = (metric.name, *labels)
        if key not in self._series:
            if len(self._series) >= MAX_SERIES:
                self._left_out.inc()
                return
            self._series.add(key)
        self._histograms[metric.name].labels(*labels).observe(value, {"trace_id": trace_id} if trace_id else None)


def measure_record(about: dict[str, Any], span: dict[str, Any]) -> list[tuple[Metric, tuple[str, ...], float]]:
    """Return the observations of one span of a file; none when it can't be read."""
    try:
        attributes = read_attributes(span.get("attributes", []))
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        if span["name"] == spans.ROUTER_REQUEST:
            return measure_first_token(start, attributes)
        mode = str(about.get("kvlens.mode", "unknown"))
        return list(measure(span["name"], end - start, attributes, mode=mode, backend="unknown"))
    except (KeyError, ValueError, TypeError, StopIteration):
        return []


def measure_first_token(start_ns: int, attributes: dict[str, Any]) -> list[tuple[Metric, tuple[str, ...], float]]:
    """Return the time to the first token at the router, when it came."""
    first = attributes.get(f"{spans.PREFIX}first_byte_ns")
    if first is None:
        return []
    mode = str(attributes.get(f"{spans.PREFIX}mode", "unknown"))
    return [(TIME_TO_FIRST_TOKEN, (mode,), max(0, first - start_ns) / 1e9)]


@click.command("metrics")
@click.option(
    "--traces",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of span files (KVLENS_TRACES_DIR), or a run directory.",
)
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address to serve on.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds per look.")
@click.option("--new-only", is_flag=True, help="Leave out what the files hold already.")
@click.option("--once", is_flag=True, help="Read once, print the metrics, and end.")
def metrics(*, traces: Path, listen: str, interval: float, new_only: bool, once: bool) -> None:
    """Serve histograms of the hand-over with trace ids as exemplars, from the span files of this host.

    Prometheus keeps exemplars with --enable-feature=exemplar-storage; Grafana then links a slow bucket to its trace.
    These are the counterparts, with the prefix kvlens_traced_, of what vLLM's own /metrics has.

    \b
    Examples:
      kvlens metrics --traces ~/.local/state/kvlens/traces
      kvlens metrics --traces runs/demo/push --once
      kvlens metrics --traces /var/lib/kvlens --listen 127.0.0.1:9471 --new-only
    """
    folder = traces / "traces" if (traces / "traces").is_dir() else traces
    if not folder.is_dir():
        fail(f"no folder {traces}", "the folder that the engines' KVLENS_TRACES_DIR names, or a run directory")
    registry = CollectorRegistry(auto_describe=False)
    histograms, tail = TracedHistograms(registry), SpanTail(folder, skip_existing=new_only)
    histograms.add(tail.poll())
    if once:
        click.echo(generate_latest(registry).decode(), nl=False)  # type: ignore[no-untyped-call]
        return
    serve(registry, histograms, tail, listen, interval)


def serve(
    registry: CollectorRegistry, histograms: TracedHistograms, tail: SpanTail, listen: str, interval: float
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM, reading what is new once an interval."""
    host, port = parse_listen(listen)
    stop: threading.Event = catch_signals()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror}", "another --listen address")
    click.echo(f"kvlens metrics on http://{format_address(host, server.server_port)}/metrics", err=True)
    while not stop.wait(interval):
        histograms.add(tail.poll())
    server.shutdown()
    server.server_close()
    thread.join()

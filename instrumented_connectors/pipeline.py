"""Exporters by OpenTelemetry's entry points and standard variables, each behind a queue and a thread of its own.

kvlens has its own pipeline: it neither takes over nor depends on the host's global tracer provider.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from time import monotonic

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter

from .export_queue import ExportCounts, ExportQueue, Limits
from .settings import EXPORT_INTERVAL_MS, read_positive

logger = logging.getLogger("kvlens")

GROUP = "opentelemetry_traces_exporter"
# vLLM kills an engine process 5 s after it asked it to end, and closes its connectors one after the other.
CLOSE_BUDGET_S = 2.5
_LEAST_WAIT_S = 0.1
_GRACE_S = 0.5


class Pipeline:
    """Hands every finished span to each exporter's queue.

    Args:
        queues: one per exporter.
        budget_s: seconds that all calls of `shutdown` together may wait for exporters.
    """

    def __init__(self, queues: Sequence[ExportQueue], budget_s: float = CLOSE_BUDGET_S) -> None:
        self._queues = tuple(queues)
        self._budget_s = self._left_s = budget_s
        self._logged: dict[str, ExportCounts] = {}
        self.produced = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Queue one span for every exporter."""
        self.produced += 1
        for queue in self._queues:
            queue.put(span)

    def counters(self) -> dict[str, ExportCounts]:
        """Return what became of the spans, by exporter name; each sums to `produced`."""
        return {queue.name: queue.counts() for queue in self._queues}

    def flush(self, timeout_s: float = CLOSE_BUDGET_S) -> bool:
        """Export what is queued; return whether all of it was within `timeout_s` seconds."""
        for queue in self._queues:
            queue.hurry()
        ends = monotonic() + timeout_s
        return all(queue.wait_empty(max(0.0, ends - monotonic())) for queue in self._queues)

    def close(self) -> None:
        """Export what is queued, within the budget; what can't be is dropped, so that the account is final.

        Safe to call more than once; a span that still comes starts the exporter again.
        """
        began = monotonic()
        if not self.flush(max(_LEAST_WAIT_S, self._left_s - _GRACE_S)):
            for queue in self._queues:
                if queue.counts().queued:
                    queue.close(_GRACE_S)
        self._left_s = max(0.0, self._left_s - (monotonic() - began))
        self._log_counts()

    def shutdown(self) -> None:
        """Close, and close the exporters too: the process ends."""
        self.close()
        for queue in self._queues:
            queue.close(_GRACE_S)

    def restart(self) -> None:
        """Begin anew in a forked child."""
        self._left_s, self.produced = self._budget_s, 0
        self._logged.clear()
        for queue in self._queues:
            queue.restart()

    def _log_counts(self) -> None:
        for name, counts in self.counters().items():
            if counts == self._logged.get(name, ExportCounts()):
                continue
            self._logged[name] = counts
            logger.log(
                logging.WARNING if counts.lost else logging.INFO,
                "kvlens: exporter=%s produced=%d exported=%d dropped=%d failed=%d queued=%d",
                name, counts.produced, counts.exported, counts.dropped, counts.failed, counts.queued,
            )  # fmt: skip


def build_pipeline(exporter_names: Sequence[str], env: Mapping[str, str] = os.environ) -> Pipeline:
    """Build the pipeline for names as in OTEL_TRACES_EXPORTER; one that isn't there is logged and left out."""
    limits = read_limits(env)
    queues = []
    for name in dict.fromkeys(exporter_names):
        if name == "none":
            continue
        try:
            queues.append(ExportQueue(name, find_exporter(name, env), limits))
        except Exception as error:
            logger.warning("kvlens: no spans through exporter %r: %s", name, error)
    return Pipeline(queues)


def read_limits(env: Mapping[str, str]) -> Limits:
    """Read OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_MAX_EXPORT_BATCH_SIZE and OTEL_BSP_SCHEDULE_DELAY (ms)."""
    size = read_positive(env, "OTEL_BSP_MAX_QUEUE_SIZE", Limits.queue_size)
    batch = read_positive(env, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", Limits.batch_size)
    delay_ms = read_positive(env, "OTEL_BSP_SCHEDULE_DELAY", EXPORT_INTERVAL_MS)
    return Limits(size, min(batch, size), delay_ms / 1000)


def find_exporter(name: str, env: Mapping[str, str] = os.environ) -> Callable[[], SpanExporter]:
    """Return what makes a span exporter, from its entry-point name.

    Raises:
        LookupError: no installed distribution offers it; the message names the remedy.
    """
    resolved = _otlp_name(env) if name == "otlp" else name
    for entry in entry_points(group=GROUP, name=resolved):
        # Loaded here, so that what is missing shows at the start; made on the exporting thread, after any fork.
        make: Callable[[], SpanExporter] = entry.load()
        return make
    raise LookupError(f"not installed (OTEL_TRACES_EXPORTER={name}); for OTLP: pip install 'kvlens[otlp]'")


def _otlp_name(env: Mapping[str, str]) -> str:
    # The SDK reads the traces-specific variable only in some versions; the generic one must work too.
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    return "otlp_proto_http" if protocol.strip().lower().startswith("http") else "otlp_proto_grpc"

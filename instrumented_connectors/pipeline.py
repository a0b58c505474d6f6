"""Exporters by OpenTelemetry's entry points and standard variables, behind its batch processors.

kvlens has its own pipeline: it neither takes over nor depends on the host's global tracer provider.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib.metadata import entry_points

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from .settings import EXPORT_INTERVAL_MS

logger = logging.getLogger("kvlens")

GROUP = "opentelemetry_traces_exporter"
FLUSH_TIMEOUT_MS = 3000


class Pipeline:
    """Hands every finished span to each processor.

    Args:
        processors: OpenTelemetry span processors.
    """

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        self._processors = tuple(processors)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue one span for export."""
        for processor in self._processors:
            processor.on_end(span)

    def flush(self) -> None:
        """Export what is queued, within a bound."""
        for processor in self._processors:
            processor.force_flush(FLUSH_TIMEOUT_MS)

    def shutdown(self) -> None:
        """Export what is queued and close the exporters."""
        for processor in self._processors:
            processor.shutdown()


def build_pipeline(exporter_names: Sequence[str]) -> Pipeline:
    """Build the processors for names as in OTEL_TRACES_EXPORTER; one that can't be built is logged and left out."""
    processors = []
    for name in exporter_names:
        if name == "none":
            continue
        try:
            processors.append(_batch(load_exporter(name)))
        except Exception as error:
            logger.warning("kvlens: no spans through exporter %r: %s", name, error)
    return Pipeline(processors)


def _batch(exporter: SpanExporter) -> BatchSpanProcessor:
    if "OTEL_BSP_SCHEDULE_DELAY" in os.environ:
        return BatchSpanProcessor(exporter)
    return BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_INTERVAL_MS)


def load_exporter(name: str) -> SpanExporter:
    """Create a span exporter from its entry-point name.

    Raises:
        LookupError: no installed distribution offers it; the message names the remedy.
    """
    resolved = _otlp_name() if name == "otlp" else name
    for entry in entry_points(group=GROUP, name=resolved):
        exporter: SpanExporter = entry.load()()
        return exporter
    raise LookupError(f"not installed (OTEL_TRACES_EXPORTER={name}); for OTLP: pip install 'kvlens[otlp]'")


def _otlp_name() -> str:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return "otlp_proto_http" if (protocol or "grpc").startswith("http") else "otlp_proto_grpc"

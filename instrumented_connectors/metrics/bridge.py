"""Payloads -> Prometheus metrics of the front end's process.

The payloads hold increments, and vLLM sends each one to exactly one API server: counters and histograms add up over
several of them by prometheus_client's multiprocess files, gauges are those of the most recent one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import REGISTRY

from . import catalogue as table
from .catalogue import COUNTER, GAUGE, METRICS, PREFIX, Metric
from .window import LabelBounds, Payload, read_payload


class PromBridge:
    """Create the metrics when they are first fed (those with presets at once) and add payloads to them.

    Args:
        classes: metric class for each kind, as vLLM gives them (prometheus_client's, or Ray's).
        labelnames: vLLM's own labels.
        per_engine: label values of each engine index.
        role, mode: which presets apply.
    """

    def __init__(
        self,
        classes: Mapping[str, Any],
        labelnames: Sequence[str],
        per_engine: Mapping[int, Sequence[object]],
        role: str,
        mode: str,
    ) -> None:
        self._classes = classes
        self._labelnames = list(labelnames)
        self._per_engine = per_engine
        self._bounds = LabelBounds()
        self._metrics: dict[str, Any] = {}
        self._children: dict[tuple[int, str, tuple[str, ...]], Any] = {}
        for metric in METRICS:
            if metric.presets and metric.kind == COUNTER and metric.applies(role, mode):
                self._preset(metric)

    def _preset(self, metric: Metric) -> None:
        for engine_idx in self._per_engine:
            for labels in metric.presets:
                self._child(engine_idx, metric, labels)

    def observe(self, payloads: Iterable[Payload], engine_idx: int) -> None:
        """Add the payloads of one engine."""
        for payload in payloads:
            for metric, labels, value in read_payload(payload):
                self._apply(self._child(engine_idx, metric, self._bounds.admit(metric, labels)), metric, value)

    def _apply(self, child: Any, metric: Metric, value: Any) -> None:
        if metric.kind == COUNTER:
            child.inc(value)
        elif metric.kind == GAUGE:
            child.set(value)
        else:
            add_to_histogram(child, metric, value)

    def _child(self, engine_idx: int, metric: Metric, labels: tuple[str, ...]) -> Any:
        key = (engine_idx, metric.name, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._parent(metric).labels(*self._per_engine[engine_idx], *labels)
        return child

    def _parent(self, metric: Metric) -> Any:
        parent = self._metrics.get(metric.name)
        if parent is None:
            extra: dict[str, Any] = {}
            if metric.kind == GAUGE:
                extra["multiprocess_mode"] = "mostrecent"
            elif metric.kind == table.HISTOGRAM:
                extra["buckets"] = list(metric.buckets)
            parent = self._metrics[metric.name] = self._classes[metric.kind](
                name=metric.name, documentation=metric.doc, labelnames=[*self._labelnames, *metric.labels], **extra
            )
        return parent


def add_to_histogram(child: Any, metric: Metric, cells: Sequence[float]) -> None:
    """Add a sum and bucket counts to a histogram.

    prometheus_client has no call for it: its cells are filled as its own `observe` does. Another library's histogram
    gets one observation per count, at the bucket's upper bound.
    """
    total, *counts = cells
    buckets = getattr(child, "_buckets", None)
    if buckets is not None and len(buckets) == len(counts):
        child._sum.inc(total)
        for bucket, count in zip(buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        return
    for bound, count in zip((*metric.buckets, metric.buckets[-1]), counts, strict=True):
        for _ in range(int(count)):
            child.observe(bound)


def unregister_earlier() -> None:
    """Forget the metrics of an earlier logger in this process, as vLLM does with its own before it makes new ones."""
    for collector in list(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith(PREFIX):
            REGISTRY.unregister(collector)

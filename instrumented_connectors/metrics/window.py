"""What was observed since the last delivery: a bounded, picklable structure of plain dicts, lists and numbers.

It crosses two process borders (pickle from worker to scheduler, msgpack from scheduler to front end), so its payload
holds no types of our own. Counters and histograms are increments: whoever delivers them exactly once needs no more
bookkeeping.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from .catalogue import BY_NAME, COUNTER, GAUGE, HISTOGRAM, OVERFLOW, Metric

Payload = dict[str, Any]

VERSION = 1
"""Version of the payload. 1: first release."""

_SEPARATOR = "\x1f"
_MAX_LABEL_LENGTH = 128
_SHORT = {COUNTER: "c", GAUGE: "g", HISTOGRAM: "h"}


class LabelBounds:
    """Remember the first values of each bounded label and answer `overflow` for those that come after."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], set[str]] = {}

    def admit(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the label values with those replaced that exceed their bound."""
        if not metric.bounds:
            return labels
        return tuple(
            self._admit(name, value, metric.bounds[name]) if name in metric.bounds else value
            for name, value in zip(metric.labels, labels, strict=True)
        )

    def _admit(self, label: str, value: str, bound: int) -> str:
        # Bounds of one label name are shared by all metrics: the peers of two metrics are the same ones.
        known = self._known.setdefault((label, str(bound)), set())
        if value not in known:
            if len(known) >= bound:
                return OVERFLOW
            known.add(value)
        return value


class Window:
    """Accumulate observations of one process.

    Args:
        bounds: label bounds that outlive the window.
    """

    def __init__(self, bounds: LabelBounds) -> None:
        self._bounds = bounds
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, list[float]] = {}

    def add(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Count, set or observe, as the metric's kind says."""
        key = encode_key(metric, self._bounds.admit(metric, labels))
        if metric.kind == COUNTER:
            self._counters[key] = self._counters.get(key, 0) + value
        elif metric.kind == GAUGE:
            self._gauges[key] = value
        else:
            cells = self._histograms.get(key)
            if cells is None:
                # Sum first, then one cell per bucket and one for what exceeds the last.
                cells = self._histograms[key] = [0.0] * (len(metric.buckets) + 2)
            cells[0] += value
            cells[1 + bisect_left(metric.buckets, value)] += 1

    def __bool__(self) -> bool:
        return bool(self._counters or self._histograms or self._gauges)

    def to_payload(self) -> Payload:
        """Return what was accumulated, ready to travel."""
        return {"v": VERSION, "c": self._counters, "g": self._gauges, "h": self._histograms}


def merge(into: Payload, other: Payload) -> Payload:
    """Add a later payload to an earlier one, in place; gauges take the later value."""
    for key, value in other["c"].items():
        into["c"][key] = into["c"].get(key, 0) + value
    into["g"].update(other["g"])
    for key, cells in other["h"].items():
        mine = into["h"].get(key)
        into["h"][key] = [a + b for a, b in zip(mine, cells, strict=True)] if mine else cells
    for key in ("r", "o", "f"):
        if key in other:
            into[key] = True if key == "f" else {**into.get(key, {}), **other[key]}
    return into


def encode_key(metric: Metric, labels: tuple[str, ...]) -> str:
    """Return metric and label values as one string (msgpack maps need plain keys)."""
    clean = (label.replace(_SEPARATOR, " ")[:_MAX_LABEL_LENGTH] for label in labels)
    return _SEPARATOR.join((metric.name, *clean))


def decode_key(key: str) -> tuple[Metric, tuple[str, ...]] | None:
    """Return metric and label values of a key, None when this version knows no such metric."""
    name, *labels = key.split(_SEPARATOR)
    metric = BY_NAME.get(name)
    return (metric, tuple(labels)) if metric is not None and len(labels) == len(metric.labels) else None


def read_payload(payload: Payload) -> Iterator[tuple[Metric, tuple[str, ...], Any]]:
    """Yield (metric, label values, value or histogram cells); what doesn't fit this version is left out."""
    if payload.get("v") != VERSION:
        return
    for kind, short in _SHORT.items():
        for key, value in payload.get(short, {}).items():
            found = decode_key(key)
            if found is None or found[0].kind != kind:
                continue
            if kind == HISTOGRAM and len(value) != len(found[0].buckets) + 2:
                continue
            yield *found, value

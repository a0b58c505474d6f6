"""The HTTP API of a Prometheus, as far as checks and previews need it."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from analysis.errors import KvlensError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Prometheus refuses more than 11,000; a panel has no more pixels than this.
POINTS = 240


@dataclass(frozen=True)
class Span:
    """The time that queries look at, in Unix seconds. Empty (start equals end) for one instant."""

    start: float
    end: float

    @property
    def step(self) -> float:
        """Return seconds between two points of a range."""
        return max(1.0, (self.end - self.start) / POINTS)

    @classmethod
    def until(cls, end: float | None, seconds: float) -> Span:
        """Return the span of so many seconds that ends at `end`, or now."""
        end = time.time() if end is None else end
        return cls(end - seconds, end)


@dataclass(frozen=True)
class Series:
    """One series: labels, and its values (time in Unix seconds, value) without NaN."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


def read_duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m or 1h30m. Raises KvlensError when it is none."""
    parts = re.findall(r"(\d+)([smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise KvlensError(f"{text!r} is no duration", "write it as 90s, 15m or 1h30m", exit_code=2)
    return float(sum(int(number) * _UNITS[unit] for number, unit in parts))


class Prometheus:
    """A running Prometheus.

    Args:
        url: its address, without a path.
        timeout: seconds per request.

    Raises:
        KvlensError: nobody answers there.
    """

    def __init__(self, url: str, timeout: float = 30) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self.names = frozenset(self._get("label/__name__/values", {}))

    def read(self, expression: str, span: Span) -> list[Series]:
        """Return the series of a query over a span. Raises ValueError with Prometheus's own words."""
        if span.start == span.end:
            return self.read_instant(expression, span.end)
        times = {"start": f"{span.start:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:.3f}"}
        result = self._get("query_range", {"query": expression, **times})["result"]
        return [series for found in result if (series := _series(found["metric"], found["values"])).points]

    def read_instant(self, expression: str, at: float) -> list[Series]:
        """Return the series of a query at one time (Unix seconds)."""
        result = self._get("query", {"query": expression, "time": f"{at:.3f}"})["result"]
        return [series for found in result if (series := _series(found["metric"], [found["value"]])).points]

    def read_exemplars(self, expression: str, span: Span) -> list[Series]:
        """Return the exemplars of the series that a query reads: labels are the exemplar's, such as trace_id."""
        times = {"start": f"{span.start:.3f}", "end": f"{span.end:.3f}"}
        found = self._get("query_exemplars", {"query": expression, **times})
        return [
            _series(exemplar["labels"], [(exemplar["timestamp"], exemplar["value"])])
            for series in found or ()
            for exemplar in series["exemplars"]
        ]

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=self._timeout) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(_read_error(error)) from error
        except (OSError, ValueError) as error:
            raise KvlensError(
                f"no Prometheus at {self._url}: {error}", "--prometheus http://127.0.0.1:9090"
            ) from error  # fmt: skip


def _series(labels: dict[str, str], values: Any) -> Series:
    points = ((float(at), float(value)) for at, value in values)
    return Series(labels, tuple((at, value) for at, value in points if math.isfinite(value)))


def _read_error(error: urllib.error.HTTPError) -> str:
    body = error.read().decode(errors="replace")
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError):
        return f"HTTP {error.code}: {body[:200]}"

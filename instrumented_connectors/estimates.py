"""What a number of tokens is likely to cost, from what this engine measured lately: to compute them, to fetch them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WINDOW = 64
"""Measurements kept; of each power of two of tokens an eighth at most, so that many small ones leave the large ones."""
PER_SIZE = WINDOW // 8
MIN_SAMPLES = 3
REFIT = 8
"""New measurements after which the line is fitted again (sooner while there are few)."""
LOW, HIGH = 0.1, 0.9
_SPREAD = 1.5


@dataclass(frozen=True)
class Estimate:
    """A cost in ns: the middle, 10 % and 90 % of what this engine's recent measurements say, and how many there are."""

    ns: int
    low_ns: int
    high_ns: int
    samples: int


@dataclass(frozen=True)
class Line:
    """Cost as a fixed part and a part per token (ns), and how measured and fitted costs relate (sorted ratios)."""

    fixed_ns: float
    per_token_ns: float
    ratios: tuple[float, ...]


class CostModel:
    """A robust line through recent (tokens, ns) measurements: the median of all slopes (Theil and Sen).

    Outliers as a first handshake move neither the line nor the middle; they widen the spread only when there are many.

    Args:
        marginal: estimate what more tokens add, without the fixed part (which is paid anyway).
    """

    def __init__(self, *, marginal: bool) -> None:
        self._marginal = marginal
        self._samples: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._sizes: dict[int, deque[int]] = {}
        self._number = 0
        self._line: Line | None = None
        self._fitted = 0

    def add(self, tokens: int, ns: int) -> None:
        """Take in one measurement; what can't be one is left out."""
        if tokens <= 0 or ns <= 0:
            return
        self._number += 1
        self._samples[self._number] = (tokens, ns)
        size = self._sizes.setdefault(tokens.bit_length(), deque())
        size.append(self._number)
        if len(size) > PER_SIZE:
            self._samples.pop(size.popleft(), None)
        while len(self._samples) > WINDOW:
            self._samples.popitem(last=False)

    def estimate(self, tokens: int) -> Estimate | None:
        """Return what `tokens` tokens cost; None without enough measurements."""
        if tokens <= 0 or len(self._samples) < MIN_SAMPLES:
            return None
        if self._line is None or self._number - self._fitted >= min(REFIT, len(self._samples) // 8 + 1):
            self._line, self._fitted = fit(list(self._samples.values())), self._number
        line = self._line
        cost = line.per_token_ns * tokens + (0.0 if self._marginal else line.fixed_ns)
        low, middle, high = (round(cost * quantile(line.ratios, share)) for share in (LOW, 0.5, HIGH))
        return Estimate(middle, low, high, len(self._samples))


def fit(samples: Sequence[tuple[int, int]]) -> Line:
    """Fit (tokens, ns) pairs; sizes that hardly differ say nothing of a fixed part, so the cost is all per token."""
    sizes = [tokens for tokens, _ in samples]
    fixed, per_token = 0.0, median(ns / tokens for tokens, ns in samples)
    if max(sizes) >= _SPREAD * min(sizes):
        slopes = [(b - a) / (q - p) for (p, a), (q, b) in combinations(samples, 2) if p != q]
        slope = max(0.0, median(slopes))
        offset = median(ns - slope * tokens for tokens, ns in samples)
        if offset >= 0:
            fixed, per_token = offset, slope
    ratios = sorted(ns / max(1.0, fixed + per_token * tokens) for tokens, ns in samples)
    return Line(fixed, per_token, tuple(ratios))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

"""Differences of the p50, p90 and p99 of the same requests, with bootstrap intervals; no verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .matching import TPOT, TTFT, Matched

Floats = NDArray[np.float64]

RESAMPLES = 1999
MAX_BOOTSTRAP = 20_000
MIN_VALUES = {0.50: 6, 0.90: 20, 0.99: 200}
"""Two values beyond a quantile on average, so that it is not simply the largest one."""


@dataclass(frozen=True)
class QuantileDifference:
    """One quantile of one metric in both runs, ms, and the interval of b - a (percentile bootstrap)."""

    metric: str
    quantile: float
    a: float
    b: float
    low: float
    high: float


def compare_quantiles(matched: Matched, level: float, rng: np.random.Generator) -> list[QuantileDifference]:
    """Compare quantiles of pairs; strata have none, as their mix of prompts may differ between the runs."""
    if not matched.paired:
        return []
    found = []
    for metric in (TTFT, TPOT):
        a, b = matched.pool(metric)
        known = ~(np.isnan(a) | np.isnan(b))
        found += [
            _compare(metric, quantile, (a[known], b[known]), level, rng)
            for quantile, least in MIN_VALUES.items()
            if known.sum() >= least
        ]
    return found


def _compare(
    metric: str, quantile: float, sides: tuple[Floats, Floats], level: float, rng: np.random.Generator
) -> QuantileDifference:
    a, b = sides
    at = float(np.quantile(a, quantile)), float(np.quantile(b, quantile))
    if len(a) > MAX_BOOTSTRAP or (np.ptp(a) == 0 and np.ptp(b) == 0):
        return QuantileDifference(metric, quantile, *at, float("nan"), float("nan"))

    def subtract(one: Floats, two: Floats, axis: int = -1) -> Floats:
        return np.asarray(np.quantile(two, quantile, axis=axis) - np.quantile(one, quantile, axis=axis))

    found = stats.bootstrap(
        (a, b), subtract, paired=True, vectorized=True, n_resamples=RESAMPLES, confidence_level=level,
        method="percentile", rng=rng, batch=max(1, 2_000_000 // len(a)),
    )  # fmt: skip
    return QuantileDifference(
        metric, quantile, *at, float(found.confidence_interval.low), float(found.confidence_interval.high)
    )

"""Matched samples of one metric -> the difference of means with its interval and the p-value of a rank test.

Means, because segments then add up: the differences of all segments and of the residual sum to the difference of TTFT.
Intervals are bias-corrected accelerated bootstraps (scipy.stats.bootstrap; DiCiccio and Efron 1996), normal beyond
MAX_BOOTSTRAP values. The test is Wilcoxon's signed-rank test for pairs, and for strata Mann-Whitney tests joined by
Stouffer's method with weights by size (scipy.stats.combine_pvalues), which is van Elteren's test in all but name.
Requests of one run that wait in the same queue are alike: neighbours are averaged into batches first, as long as their
correlation asks for (batch means; Law, Simulation Modeling and Analysis, chapter 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

RESAMPLES = 1999
MAX_BOOTSTRAP = 2000
"""Above this the sampling distribution of a mean is normal for any purpose here, and a bootstrap only costs."""
MIN_BATCHES = 10
"""Fewer batches than this could never be significant; a sample below twice as many is left whole."""
SIGNIFICANT_LAG = 1.645
"""One-sided 5 % point of sqrt(n) * lag-1 correlation under independence."""


@dataclass(frozen=True)
class Estimate:
    """One metric in both runs; times in ms.

    requests: values behind it, per run. units: what the test counted (pairs, or the smaller run's values, after
    batching). difference: b - a. low, high: interval of the difference. error: its standard error. batch: requests
    averaged into one unit.
    """

    requests: tuple[int, int]
    units: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    error: float
    p: float
    batch: int


def estimate_pairs(a: Floats, b: Floats, level: float, rng: np.random.Generator) -> Estimate:
    """Estimate from pairs in order of arrival; pairs with an unknown side are left out."""
    known = ~(np.isnan(a) | np.isnan(b))
    a, b = a[known], b[known]
    if len(a) < 2:
        return _know_nothing(len(a), len(b))
    memory = measure_memory(b - a, signed=True)
    units = batch_means(b - a, memory.batch)
    difference = float(np.mean(b - a))
    found = Estimate(
        (len(a), len(b)), len(units), float(a.mean()), float(b.mean()), difference,
        *_interval_of_mean(units, level, rng), _test_pairs(units), memory.batch,
    )  # fmt: skip
    return _inflate(found, memory.inflation)


def estimate_strata(a: Sequence[Floats], b: Sequence[Floats], level: float, rng: np.random.Generator) -> Estimate:
    """Estimate from strata, each weighted by its share of all requests of both runs."""
    pairs = [(one[~np.isnan(one)], two[~np.isnan(two)]) for one, two in zip(a, b, strict=True)]
    pairs = [(one, two) for one, two in pairs if min(len(one), len(two)) >= 2]
    if not pairs:
        return _know_nothing(sum(map(len, a)), sum(map(len, b)))
    memory = max((measure_memory(sample) for pair in pairs for sample in pair), key=lambda one: one.batch)
    sizes = np.array([len(one) + len(two) for one, two in pairs], dtype=np.float64)
    weights = sizes / sizes.sum()
    means = np.array([[one.mean(), two.mean()] for one, two in pairs])
    mean_a, mean_b = (float(value) for value in weights @ means)
    units = [(batch_means(one, memory.batch), batch_means(two, memory.batch)) for one, two in pairs]
    requests = (sum(len(one) for one, _ in pairs), sum(len(two) for _, two in pairs))
    counted = min(sum(len(one) for one, _ in units), sum(len(two) for _, two in units))
    found = Estimate(
        requests, counted, mean_a, mean_b, mean_b - mean_a, *_interval_of_strata(units, weights, level, rng),
        _test_strata(units, sizes), memory.batch,
    )  # fmt: skip
    return _inflate(found, memory.inflation)


def _inflate(found: Estimate, inflation: float) -> Estimate:
    """Widen interval, error and p for the correlation that batches left."""
    if inflation <= 1:
        return found
    wider = float(np.sqrt(inflation))
    z = float(stats.norm.isf(max(found.p, 1e-300) / 2)) / wider
    return replace(
        found,
        low=found.difference + (found.low - found.difference) * wider,
        high=found.difference + (found.high - found.difference) * wider,
        error=found.error * wider,
        p=float(2 * stats.norm.sf(z)),
    )


@dataclass(frozen=True)
class Memory:
    """How alike neighbours are: batch size, and the factor by which batches still understate the variance of a mean."""

    batch: int
    inflation: float


FORGETFUL = Memory(1, 1.0)


def measure_memory(values: Floats, *, signed: bool = False) -> Memory:
    """Measure the memory of a sample in order of arrival, as that of an AR(1) process with its lag-1 correlation r.

    The variance of its mean is (1 + r) / (1 - r) times that of independent values; batches of about that size leave a
    known rest, the inflation. signed: the sample is tested by signed ranks, whose correlation counts too: values of
    very different size hide it.
    """
    if len(values) < 2 * MIN_BATCHES or np.ptp(values) == 0:
        return FORGETFUL
    r = _correlate(values)
    if signed:
        r = max(r, _correlate(np.sign(values) * stats.rankdata(np.abs(values))))
    if r * np.sqrt(len(values)) < SIGNIFICANT_LAG:
        return FORGETFUL
    # The estimate is low by (1 + 3r) / n on average (Kendall 1954); one and a half standard errors on top, as too low a
    # correlation invents findings and too high a one only loses some.
    r = min(r + (1 + 3 * r) / len(values) + 1.5 / np.sqrt(len(values)), 0.95)
    times = (1 + r) / (1 - r)
    batch = max(1, min(int(np.ceil(times)), len(values) // MIN_BATCHES))
    covered = times - 2 * r * (1 - r**batch) / (batch * (1 - r) ** 2)
    return Memory(batch, times / covered)


def _correlate(values: Floats) -> float:
    centred = values - values.mean()
    spread = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / spread if spread > 0 else 0.0


def batch_means(values: Floats, batch: int) -> Floats:
    """Average neighbours in nearly equal batches."""
    if batch <= 1:
        return values
    return np.array([part.mean() for part in np.array_split(values, max(2, len(values) // batch))])


def _interval_of_mean(units: Floats, level: float, rng: np.random.Generator) -> tuple[float, float, float]:
    centre, error = float(units.mean()), float(stats.sem(units))
    if error == 0:
        return centre, centre, 0.0
    if len(units) > MAX_BOOTSTRAP:
        return *_normal_interval(centre, error, level), error
    found = stats.bootstrap((units,), np.mean, n_resamples=RESAMPLES, confidence_level=level, method="BCa", rng=rng)
    return *_bounds(found, centre, error, level), error


def _interval_of_strata(
    units: Sequence[tuple[Floats, Floats]], weights: Floats, level: float, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Interval of the weighted difference; the bootstrap resamples every stratum of every run on its own."""
    flat = [sample for pair in units for sample in pair]
    signs = np.repeat(weights, 2) * np.tile([-1.0, 1.0], len(units))
    centre = float(sum(sign * sample.mean() for sign, sample in zip(signs, flat, strict=True)))
    variance = sum(sign**2 * sample.var(ddof=1) / len(sample) for sign, sample in zip(signs, flat, strict=True))
    error = float(np.sqrt(variance))
    if error == 0:
        return centre, centre, 0.0
    if sum(map(len, flat)) > MAX_BOOTSTRAP:
        return *_normal_interval(centre, error, level), error

    def weigh(*samples: Floats, axis: int = -1) -> Floats:
        return np.sum([s * np.mean(one, axis=axis) for s, one in zip(signs, samples, strict=True)], axis=0)  # type: ignore[no-any-return]

    found = stats.bootstrap(
        flat, weigh, n_resamples=RESAMPLES, confidence_level=level, method="BCa", vectorized=True, rng=rng
    )
    return *_bounds(found, centre, error, level), error


def _bounds(found: Any, centre: float, error: float, level: float) -> tuple[float, float]:
    low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
    # The acceleration is undefined for samples that are constant but for one value.
    return (low, high) if np.isfinite(low) and np.isfinite(high) else _normal_interval(centre, error, level)


def _normal_interval(centre: float, error: float, level: float) -> tuple[float, float]:
    reach = float(stats.norm.ppf(0.5 + level / 2)) * error
    return centre - reach, centre + reach


def _test_pairs(units: Floats) -> float:
    return 1.0 if not np.any(units) else float(stats.wilcoxon(units).pvalue)


def _test_strata(units: Sequence[tuple[Floats, Floats]], sizes: Floats) -> float:
    """Join one-sided Mann-Whitney tests, so that strata that point opposite ways cancel."""
    one_sided = [0.5 if np.ptp(np.concatenate(pair)) == 0 else _rank(*pair) for pair in units]
    joined = float(
        stats.combine_pvalues(np.clip(one_sided, 1e-300, 1 - 1e-16), method="stouffer", weights=np.sqrt(sizes)).pvalue
    )
    return min(1.0, 2 * min(joined, 1 - joined))


def _rank(a: Floats, b: Floats) -> float:
    """One-sided p that b is larger; asymptotic, as normal deviates are joined (exact small strata cost seconds)."""
    found = stats.mannwhitneyu(b, a, alternative="greater", method="asymptotic", use_continuity=False)
    return float(found.pvalue)


def _know_nothing(a: int, b: int) -> Estimate:
    nothing = float("nan")
    return Estimate((a, b), 0, nothing, nothing, nothing, nothing, nothing, nothing, 1.0, 1)

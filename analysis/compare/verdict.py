"""Estimates of all metrics -> one verdict each, with the family-wise error held and the resolution respected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .estimate import Estimate
from .matching import TPOT, TTFT

BETTER, WORSE, NO_EVIDENCE = "better", "worse", "no evidence"
UNRESOLVED, TOO_FEW = "unresolved", "too few"

MIN_UNITS = 6
"""Six pairs are the fewest in which Wilcoxon's test can reach 5 % (2 / 2**6 = 0.03)."""
POWER = 0.8

HOLM, BENJAMINI_HOCHBERG, NONE = "holm", "bh", "none"
CORRECTIONS = (HOLM, BENJAMINI_HOCHBERG, NONE)


@dataclass(frozen=True)
class Verdict:
    """What is said of one metric; times in ms, shares of A's mean (`relative`) and of A's mean TTFT (`of_ttft`).

    resolution: differences below this are smaller than what the measurement can tell apart.
    detectable: the difference that a repetition would find with POWER at this level; None where nothing varies.
    only_in: "a" or "b" when the other run has no time in this segment at all.
    """

    name: str
    estimate: Estimate
    p_adjusted: float
    resolution: float
    detectable: float | None
    relative: float | None
    of_ttft: float | None
    only_in: str | None
    word: str


def judge(
    estimates: Mapping[str, Estimate], resolutions: Mapping[str, float], alpha: float, correction: str = HOLM
) -> list[Verdict]:
    """Judge all metrics as one family: the chance of any false better or worse is at most alpha (Holm)."""
    names = list(estimates)
    adjusted = adjust([estimates[name].p for name in names], correction)
    ttft = estimates[TTFT].mean_a if TTFT in estimates else float("nan")
    reach = float(stats.norm.ppf(1 - alpha / 2 / max(len(names), 1)) + stats.norm.ppf(POWER))
    return [
        _judge_one(name, estimates[name], p, resolutions.get(name, 0.0), reach, ttft, alpha)
        for name, p in zip(names, adjusted, strict=True)
    ]


def _judge_one(  # noqa: PLR0917
    name: str, found: Estimate, p: float, resolution: float, reach: float, ttft: float, alpha: float
) -> Verdict:
    return Verdict(
        name,
        found,
        p,
        resolution,
        detectable=reach * found.error if found.error > 0 else None,
        relative=_divide(found.difference, found.mean_a),
        of_ttft=_divide(found.difference, ttft) if name != TPOT else None,
        only_in=_find_only(found),
        word=_choose_word(found, p, resolution, alpha),
    )


def _choose_word(found: Estimate, p: float, resolution: float, alpha: float) -> str:
    if found.units < MIN_UNITS:
        return TOO_FEW
    # Rank test and interval of the mean must agree: ranks alone ignore a few very slow requests, means alone obey them.
    if p > alpha or not (found.low > 0 or found.high < 0):
        return NO_EVIDENCE
    if abs(found.difference) <= resolution:
        return UNRESOLVED
    return WORSE if found.difference > 0 else BETTER


def _divide(value: float, whole: float) -> float | None:
    return value / whole if np.isfinite(whole) and whole > 0 and np.isfinite(value) else None


def _find_only(found: Estimate) -> str | None:
    if found.mean_a == 0 and found.mean_b:
        return "b"
    return "a" if found.mean_b == 0 and found.mean_a else None


def adjust(p: Sequence[float], correction: str) -> list[float]:
    """Adjust p-values for their number: Holm's step-down (1979), or Benjamini and Hochberg's false discovery rate."""
    if correction == NONE or not p:
        return list(p)
    if correction == BENJAMINI_HOCHBERG:
        return [float(value) for value in stats.false_discovery_control(p, method="bh")]
    order = np.argsort(p)
    stepped = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]

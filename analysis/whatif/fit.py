"""Small robust fits: a step's time as a sum of non-negative costs, stretched while another engine is awake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

SLOWDOWNS = np.arange(0.0, 3.01, 0.05)
MIN_EACH = 5
"""Steps needed with the other engine at work, and as many without, to tell what it costs."""
ROUNDS = 8
CLEARLY = 3.0
"""Standard errors. On 37 to 56 prompts, P and D on one core gave 4.1 and 6.7, on a core each up to 1.7."""


@dataclass(frozen=True)
class Fit:
    """Costs of the columns (s each), slowdown by the other engine (None: cannot be told), ratios measured / fitted."""

    costs: Floats
    slowdown: float | None
    ratios: Floats


def fit_costs(columns: Floats, seconds: Floats, overlap: Floats, slowdown: float | None = None) -> Fit:
    """Fit seconds = (columns @ costs) * (1 + slowdown * overlap), costs >= 0, relative errors, outliers weighted down.

    slowdown: taken as given; None searches it, and leaves it None where the steps cannot tell (can_tell).
    """
    if slowdown is not None:
        return _fit_stretched(columns, seconds, overlap, slowdown)
    if not can_tell(overlap):
        fit = _fit_stretched(columns, seconds, overlap, 0.0)
        return Fit(fit.costs, None, fit.ratios)
    return min((_fit_stretched(columns, seconds, overlap, float(value)) for value in SLOWDOWNS), key=_deviate)


def can_tell(overlap: Floats) -> bool:
    """Whether steps with and without the other engine at work are there to compare."""
    return bool((overlap > 0.7).sum() >= MIN_EACH and (overlap < 0.3).sum() >= MIN_EACH)


def is_clearly_better(fit: Fit, other: Fit) -> bool:
    """Whether a fit explains the same steps better than another, by CLEARLY standard errors of the difference."""
    better = np.abs(np.log(other.ratios)) - np.abs(np.log(fit.ratios))
    return bool(better.mean() > CLEARLY * better.std() / np.sqrt(len(better)))


def _deviate(fit: Fit) -> float:
    return float(np.abs(np.log(fit.ratios)).mean())


def _fit_stretched(columns: Floats, seconds: Floats, overlap: Floats, slowdown: float) -> Fit:
    """Iteratively reweighted non-negative least squares on relative errors: close to least absolute deviations."""
    stretched = columns * (1 + slowdown * overlap)[:, None]
    weight = 1 / seconds
    costs = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        costs, _ = nnls(stretched * weight[:, None], seconds * weight)
        fitted = np.maximum(stretched @ costs, 1e-9)
        residual = np.abs(seconds / fitted - 1)
        weight = 1 / seconds / np.sqrt(np.maximum(residual, 0.02))
    return Fit(costs, slowdown, seconds / np.maximum(stretched @ costs, 1e-9))

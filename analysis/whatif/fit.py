"""Small robust fits: a step's time as a sum of non-negative costs, stretched while another engine is awake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

SLOWDOWNS = np.arange(0.0, 3.01, 0.05)
MIN_GAIN = 0.2
"""A slowdown is told when it explains the steps better than none by this share of their deviation."""
ROUNDS = 8


@dataclass(frozen=True)
class Fit:
    """Costs of the columns (s each), slowdown by the other engine (None: cannot be told), ratios measured / fitted."""

    costs: Floats
    slowdown: float | None
    ratios: Floats


def fit_costs(columns: Floats, seconds: Floats, overlap: Floats, slowdown: float | None = None) -> Fit:
    """Fit seconds = (columns @ costs) * (1 + slowdown * overlap), costs >= 0, relative errors, outliers weighted down.

    slowdown: taken as given; None searches it, and leaves it None where it explains little (MIN_GAIN): an engine that
    was always awake beside the other one shows no difference.
    """
    if slowdown is not None:
        return _fit_stretched(columns, seconds, overlap, slowdown)
    fits = [_fit_stretched(columns, seconds, overlap, float(value)) for value in SLOWDOWNS]
    best = min(fits, key=_deviate)
    if _deviate(best) > (1 - MIN_GAIN) * _deviate(fits[0]):
        return Fit(fits[0].costs, None, fits[0].ratios)
    return best


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

"""The threshold curve's prediction against a second run that was recorded with another threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..breakdown import break_down
from ..compare.estimate import Estimate, estimate_pairs
from ..errors import KvlensError
from ..source import Session
from .decisions import drop_repeats, load_decisions
from .thresholds import FAILED, FETCHED, Prediction, find_threshold, predict

LEVEL = 0.95
SEED = 20261130


@dataclass(frozen=True)
class Recorded:
    """What the check needs of a run: its name, its decisions, and the TTFT of every request (request_key, ttft ns)."""

    name: str
    decisions: pl.DataFrame
    ttft: pl.DataFrame


@dataclass(frozen=True)
class Check:
    """A prediction beside what was measured: changes of the mean TTFT per request, ms, and shares fetched.

    error_ms: measured less predicted. is_inside: whether zero lies within the uncertainty of both.
    """

    run: str
    threshold: int
    predicted: Prediction
    measured: Estimate
    fetched_share: float
    error_ms: float
    is_inside: bool


def load_recorded(session: Session) -> Recorded:
    """Load a run for a check. Raises KvlensError when it has no decisions."""
    decisions = drop_repeats(load_decisions(session))
    return Recorded(session.run.name, decisions, break_down(session).budgets.select("request_key", "ttft"))


def check_curve(base: Recorded, other: Recorded) -> Check:
    """Predict from one run what another one measured. Raises KvlensError when the two cannot be held together."""
    threshold = find_threshold(other.decisions)
    if threshold is None:
        raise KvlensError(
            f"the decisions of {other.name} name no one threshold",
            "record it with one kv_recompute_threshold on all prefill engines: kvlens lab run --threshold N",
        )
    pairs = _unique(base.ttft).join(_unique(other.ttft), on="request_key", suffix="_b").sort("request_key")
    if pairs.height < 2:
        raise KvlensError(
            f"{base.name} and {other.name} have no requests in common",
            "record both with the same workload and seed: requests are paired by X-Request-Id",
        )
    one, two = (pairs[name].to_numpy() / 1e6 for name in ("ttft", "ttft_b"))
    measured = estimate_pairs(one, two, LEVEL, np.random.default_rng(SEED))
    predicted = predict(base.decisions, threshold)
    error = measured.difference - predicted.change_ms
    reach = float(np.hypot(predicted.reach_ms, (measured.high - measured.low) / 2))
    fetched = float(other.decisions["reason"].is_in([*FETCHED, *FAILED]).mean() or 0.0)  # type: ignore[arg-type]
    return Check(other.name, threshold, predicted, measured, fetched, error, abs(error) <= reach)


def _unique(ttft: pl.DataFrame) -> pl.DataFrame:
    return ttft.unique("request_key", keep="none")

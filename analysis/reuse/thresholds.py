"""Which kv_recompute_threshold would have been right: threshold -> mean TTFT change per request, share fetched.

vLLM fetches when the tokens that a fetch saves are at least the threshold. For every recorded request the chosen way
was measured, the other one is an estimate; a threshold's change is the mean over all requests of (estimate of the other
way less what the chosen one took) where it would have chosen otherwise, 0 elsewhere. What one request's computation
does to others in the queue is not in it. Estimates are corrected by what they missed where they can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

FETCHED = ("fetched",)
FAILED = ("fetch_failed_recomputed", "fetch_failed", "expired", "remote_unknown")
DECLINED = ("below_threshold",)
MIN_PAIRS = 5
"""Fewer checked estimates than this correct nothing."""
UNCHECKED = 0.3
"""Standard error, as a share, of estimates that nothing of the run can check: they come from other prompts and other
fetches, under another load. On the lab's pair, checked ones of fetches were off by 1 to 16 % in the mean."""
MAX_POINTS = 40
MAX_UNKNOWN = 0.2
"""A threshold of which more of the flips than this have no estimate is not called the best."""
LEVEL = 0.95
NO_EVIDENCE = "no evidence"
TEN_TO_NINETY = 2.5631
"""Width of the 10..90 % interval of a normal distribution in standard deviations."""


@dataclass(frozen=True)
class Correction:
    """Measured over estimated: factor, its standard error, and the checked pairs behind it.

    With fewer than MIN_PAIRS the factor is 1 and the error an assumption, UNCHECKED.
    """

    factor: float
    error: float
    pairs: int


@dataclass(frozen=True)
class Curve:
    """The curve, and what it says.

    points: one row per interval of thresholds that decide alike: low, high (None: never fetch), change_ms (mean TTFT
    change per request), error_ms, low_ms, high_ms (its 95 % interval), fetched_share, flipped, unknown (flips without
    an estimate), is_recorded, is_best, is_alike (not to be told apart from the best).
    verdict: better (another threshold), kept (the recorded one is best), no evidence, or empty without decisions.
    """

    points: pl.DataFrame
    fetch: Correction
    recompute: Correction
    verdict: str
    conclusion: str


def draw_curve(decisions: pl.DataFrame) -> Curve:
    """Draw the curve of a run's decisions (rows of sql/decisions.sql)."""
    fetch, recompute = (_correct(decisions, side) for side in ("fetch", "recompute"))
    choices = price_choices(decisions, fetch, recompute)
    tokens = choices.filter("can_flip")["fetch_tokens"].to_numpy()
    if not len(tokens):
        return Curve(
            pl.DataFrame(), fetch, recompute, "", "No request had a choice between fetching and computing again."
        )
    recorded = find_threshold(decisions)
    lows = _choose_lows(tokens, recorded)
    changes = [_change(choices, low) for low in lows]
    sound = [place for place, change in enumerate(changes) if change.unknown <= MAX_UNKNOWN * change.flipped]
    if not any(changes[place].flipped for place in sound) and len(changes) > 1:
        points = _tabulate(lows, changes, recorded, sound[0] if sound else 0, [True] * len(lows))
        return Curve(points, fetch, recompute, NO_EVIDENCE, "No evidence: the other way was estimated for too few.")
    best = min(sound, key=lambda place: changes[place].mean)
    reach = float(stats.norm.isf((1 - LEVEL) / 2 / max(1, len(lows) - 1)))
    alike = [_is_alike(change, changes[best], reach) for change in changes]
    points = _tabulate(lows, changes, recorded, best, alike)
    return Curve(points, fetch, recompute, *_conclude(points, changes[best], reach))


@dataclass(frozen=True)
class Prediction:
    """What another threshold would have done: change of the mean TTFT (ms) with its 95 % reach, and the share fetched.

    flipped, unknown: requests that it decides otherwise, and those of them without an estimate.
    """

    change_ms: float
    reach_ms: float
    fetched_share: float
    flipped: int
    unknown: int


def predict(decisions: pl.DataFrame, threshold: int) -> Prediction:
    """Predict what a threshold would have done to this traffic."""
    fetch, recompute = (_correct(decisions, side) for side in ("fetch", "recompute"))
    change = _change(price_choices(decisions, fetch, recompute), threshold)
    reach = float(stats.norm.ppf(0.5 + LEVEL / 2)) * change.error / 1e6
    return Prediction(change.mean / 1e6, reach, change.fetched, change.flipped, change.unknown)


def price_choices(decisions: pl.DataFrame, fetch: Correction, recompute: Correction) -> pl.DataFrame:
    """Price the other choice of every request, ns.

    Adds fetches (what was done), can_flip, delta (change if the other choice were taken, NULL unknown), spread (its own
    standard deviation) and shared_fetch, shared_recompute (errors that requests share, as they use the same estimate).
    """
    fetches = pl.col("reason").is_in([*FETCHED, *FAILED])
    failed = pl.col("reason").is_in(FAILED)
    can_flip = pl.col("reason").is_in([*FETCHED, *FAILED, *DECLINED]) & (pl.col("fetch_tokens") > 0)
    again = pl.when(failed).then(-pl.col("fetch_ns")).otherwise(
        pl.col("recompute_estimate_ns") * recompute.factor - pl.col("fetch_ns")
    )  # fmt: skip
    instead = pl.col("fetch_estimate_ns") * fetch.factor - pl.col("recompute_ns")
    sides = {"fetch": fetches.not_(), "recompute": fetches & ~failed}
    priced = decisions.with_columns(
        fetches=fetches, can_flip=can_flip.fill_null(value=False), delta=pl.when(fetches).then(again).otherwise(instead)
    )
    for side, correction in (("fetch", fetch), ("recompute", recompute)):
        width = (pl.col(f"{side}_estimate_high_ns") - pl.col(f"{side}_estimate_low_ns")) * correction.factor
        spread = (width / TEN_TO_NINETY).fill_null(0.0)
        shared = (
            (spread / pl.col(f"{side}_samples").fill_null(1).clip(lower_bound=1).sqrt()).pow(2)
            + (pl.col(f"{side}_estimate_ns").fill_null(0) * correction.error).pow(2)
        ).sqrt()  # fmt: skip
        priced = priced.with_columns(
            pl.when(sides[side]).then(spread).otherwise(0.0).alias(f"spread_{side}"),
            pl.when(sides[side]).then(shared).otherwise(0.0).alias(f"shared_{side}"),
        )
    return priced.with_columns(spread=pl.col("spread_fetch") + pl.col("spread_recompute"))


def _correct(decisions: pl.DataFrame, side: str) -> Correction:
    """Ratio of what was measured to what was estimated, where both are known (Cochran, Sampling Techniques, ch. 6)."""
    taken = FETCHED if side == "fetch" else (*DECLINED, *FAILED)
    known = decisions.filter(pl.col("reason").is_in(taken)).drop_nulls([f"{side}_estimate_ns", f"{side}_ns"])
    estimated, measured = (known[name].to_numpy().astype(float) for name in (f"{side}_estimate_ns", f"{side}_ns"))
    if len(known) < MIN_PAIRS or estimated.sum() <= 0:
        return Correction(1.0, UNCHECKED, len(known))
    factor = float(measured.sum() / estimated.sum())
    rest = measured - factor * estimated
    error = float(np.sqrt((rest @ rest) / (len(known) - 1) / len(known)) / estimated.mean())
    return Correction(factor, error, len(known))


def find_threshold(decisions: pl.DataFrame) -> int | None:
    """Find the threshold that the run used; None when engines differed or none said."""
    used = decisions["threshold"].drop_nulls().unique()
    return int(used[0]) if used.len() == 1 else None


def _choose_lows(tokens: NDArray[Any], recorded: int | None) -> list[int]:
    """Lowest threshold of each interval in which nothing changes; thinned to MAX_POINTS."""
    cuts = np.unique(tokens) + 1
    if len(cuts) > MAX_POINTS:
        cuts = np.unique(np.quantile(cuts, np.linspace(0, 1, MAX_POINTS), method="nearest"))
    own = {recorded} if recorded and len(np.unique(tokens)) > MAX_POINTS else set()
    return sorted({0, *(int(cut) for cut in cuts), *own})


@dataclass(frozen=True)
class _Change:
    values: Floats  # per request, 0 where nothing changes
    spread: Floats
    shared: tuple[Floats, Floats]
    fetched: float
    flipped: int
    unknown: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        return _error(self.values, self.spread, self.shared)


def _error(values: Floats, spread: Floats, shared: tuple[Floats, Floats]) -> float:
    """Standard error of the mean: between requests, of single estimates, and what all of them have in common."""
    count = len(values)
    between = float(values.std(ddof=1)) / np.sqrt(count) if count > 1 else 0.0
    own = float(np.sqrt((spread**2).sum())) / count
    common = [float(side.mean()) for side in shared]
    return float(np.sqrt(between**2 + own**2 + sum(side**2 for side in common)))


def _change(choices: pl.DataFrame, threshold: int) -> _Change:
    tokens = pl.col("fetch_tokens").fill_null(0)
    wanted = tokens >= threshold
    flip = pl.col("can_flip") & (pl.col("fetches") != wanted)
    known = pl.col("delta").is_not_null()
    rows = choices.select(
        flip=flip, unknown=flip & ~known, fetched=pl.when("can_flip").then(wanted).otherwise("fetches"),
        values=pl.when(flip & known).then("delta").otherwise(0.0),
        spread=pl.when(flip & known).then("spread").otherwise(0.0),
        # Signed, so that a change between two thresholds can be formed from both.
        shared_fetch=pl.when(flip & known).then("shared_fetch").otherwise(0.0),
        shared_recompute=pl.when(flip & known).then("shared_recompute").otherwise(0.0),
    )  # fmt: skip
    kept = rows.filter(~pl.col("unknown"))
    columns = [kept[name].to_numpy().astype(float) for name in ("values", "spread", "shared_fetch", "shared_recompute")]
    empty = np.zeros(1)
    values, spread, one, two = columns if kept.height else [empty] * 4
    fetched = float(rows["fetched"].mean() or 0.0)  # type: ignore[arg-type]
    return _Change(values, spread, (one, two), fetched, int(rows["flip"].sum()), int(rows["unknown"].sum()))


def _is_alike(one: _Change, best: _Change, reach: float) -> bool:
    """Whether two thresholds can't be told apart: their difference, request by request, is within its error."""
    if len(one.values) != len(best.values):  # some flips are unknown: compare the means
        return one.mean - best.mean <= reach * float(np.hypot(one.error, best.error))
    shared = (np.abs(one.shared[0] - best.shared[0]), np.abs(one.shared[1] - best.shared[1]))
    spread = np.sqrt(np.abs(one.spread**2 - best.spread**2))
    return one.mean - best.mean <= reach * _error(one.values - best.values, spread, shared)


def _tabulate(
    lows: list[int], changes: list[_Change], recorded: int | None, best: int, alike: list[bool]
) -> pl.DataFrame:
    reach = float(stats.norm.ppf(0.5 + LEVEL / 2))
    highs: list[int | None] = [*(low - 1 for low in lows[1:]), None]
    rows = []
    for place, (low, high, change) in enumerate(zip(lows, highs, changes, strict=True)):
        is_recorded = recorded is not None and low <= recorded and (high is None or recorded <= high)
        mean, error = change.mean / 1e6, change.error / 1e6
        rows.append({
            "low": low, "high": high, "change_ms": mean, "error_ms": error, "low_ms": mean - reach * error,
            "high_ms": mean + reach * error, "fetched_share": change.fetched, "flipped": change.flipped,
            "unknown": change.unknown, "is_recorded": is_recorded, "is_best": place == best, "is_alike": alike[place],
        })  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"high": pl.Int64})


def _conclude(points: pl.DataFrame, best: _Change, reach: float) -> tuple[str, str]:
    row = points.filter("is_best").row(0, named=True)
    recorded = points.filter("is_recorded")
    gain, error = -best.mean / 1e6, best.error / 1e6
    name = word_range(row["low"], row["high"])
    if recorded.height and recorded["is_best"][0]:
        return "kept", f"The recorded threshold ({word_range(*recorded.row(0)[:2])}) is the best of the curve."
    if gain > reach * error and gain > 0:
        return "better", (
            f"A threshold of {name} would have been better: {gain:.1f} ± {reach * error:.1f} ms of TTFT per request."
        )
    return NO_EVIDENCE, (
        f"No evidence for another threshold: the best of the curve ({name}) gains {gain:.1f} ms per request,"
        f" within its uncertainty of {reach * error:.1f} ms."
    )


def word_range(low: int, high: int | None) -> str:
    """Word an interval of thresholds that decide alike."""
    if high is None:
        return f"{low} or more (never fetch)"
    return str(low) if low == high else f"{low} to {high}"

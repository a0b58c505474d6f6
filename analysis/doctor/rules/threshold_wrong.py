"""Another kv_recompute_threshold would have brought first tokens sooner, beyond what estimates and chance leave open.

For every turn that could have gone the other way, what it took is held against the estimate of the other way
(`kvlens decisions RUN` prints the curve).

Finding: at least twenty such turns; the best threshold of the curve gains at least 5 % of the mean TTFT of all
requests, and more than its uncertainty, with the number of thresholds compared taken into account.

Remedy: that threshold.
"""

from __future__ import annotations

import polars as pl

from ...reuse.decisions import drop_repeats
from ...reuse.thresholds import draw_curve, word_range
from ..facts import Facts
from ..finding import WARNING, Finding, Rule

FEWEST = 20
"""Turns with a choice: fewer say little of a workload."""
GAIN = 0.05
"""Share of the mean TTFT: below it nobody notices, and a curve without the queue's reaction is not that good."""


def check(facts: Facts) -> Finding | None:
    """A curve that is better elsewhere than where the engine stood."""
    with_choice = facts.decisions.filter(
        pl.col("reason").is_in(["fetched", "below_threshold"]) & (pl.col("fetch_tokens") > 0)
    )
    if with_choice.height < FEWEST or facts.budgets.is_empty():
        return None
    curve = draw_curve(drop_repeats(facts.decisions))
    mean_ms = float(facts.budgets["ttft"].mean() or 0.0) / 1e6  # type: ignore[arg-type]
    if curve.verdict != "better":
        return None
    best = curve.points.filter("is_best").row(0, named=True)
    if -best["change_ms"] < GAIN * mean_ms:
        return None
    wanted = word_range(best["low"], best["high"])
    changed = with_choice.filter((pl.col("fetch_tokens") >= best["low"]) != (pl.col("reason") == "fetched"))
    return RULE.find(
        f"{curve.conclusion} That is {-best['change_ms'] / mean_ms:.0%} of the mean.",
        changed.sort("regret_ns", descending=True, nulls_last=True).with_columns(request=pl.col("key")),
        facts.decisions.height,
        columns=("request", "reason", "fetch_tokens", "regret_ns"),
        cost=changed["regret_ns"].clip(lower_bound=0),
        remedy=f"set kv_connector_extra_config.kv_recompute_threshold to {wanted}, and check it: {REMEDY}",
    )


REMEDY = "kvlens decisions RUN prints the curve; record again with the other threshold and compare"
RULE = Rule("threshold-wrong", WARNING, REMEDY, check)

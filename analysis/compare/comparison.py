"""Two breakdowns -> one comparison, a plain value for the renderers; no input or output."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from ..breakdown import Breakdown
from .conditions import UNDECLARED, Difference, diff_conditions, is_same_workload
from .estimate import Estimate, estimate_pairs, estimate_strata
from .matching import COLUMN_OF, RESIDUAL, TPOT, TTFT, Matched, match_pairs, match_strata
from .quantiles import QuantileDifference, compare_quantiles
from .resolution import find_resolutions
from .verdict import HOLM, Verdict, judge

SEED = 20_260
"""Bootstraps are seeded: the same two runs give the same figures."""


@dataclass(frozen=True)
class LengthDifference:
    """TTFT of one prompt-length bucket (or stratum): estimate without a verdict."""

    name: str
    estimate: Estimate


@dataclass(frozen=True)
class Comparison:
    """What two runs differ in.

    differences: of conditions. unknown: runs without a manifest. verdicts: TTFT, TPOT, segments and residual.
    unfinished: per run (never finished, all) and the p-value of Fisher's exact test.
    """

    a: str
    b: str
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]
    vary: tuple[str, ...]
    matched: Matched
    verdicts: tuple[Verdict, ...]
    quantiles: tuple[QuantileDifference, ...]
    lengths: tuple[LengthDifference, ...]
    unfinished: tuple[tuple[int, int], tuple[int, int], float]
    alpha: float
    correction: str

    @property
    def undeclared(self) -> list[Difference]:
        """Conditions that differ and should not."""
        return [difference for difference in self.differences if difference.status == UNDECLARED]


def compare_breakdowns(
    a: Breakdown, b: Breakdown, *, alpha: float = 0.05, correction: str = HOLM, vary: Collection[str] = ()
) -> Comparison:
    """Compare two breakdowns, paired where both runs sent the same requests, else by stratum."""
    rng = np.random.default_rng(SEED)
    pair_up = is_same_workload(a.run.manifest, b.run.manifest)
    matched = match_pairs(a.budgets, b.budgets) if pair_up else match_strata(a.budgets, b.budgets)
    estimates = estimate_all(matched, 1 - alpha, rng)
    observed = {"ttft_source": (find_sources(a.budgets), find_sources(b.budgets))}
    return Comparison(
        a.run.name,
        b.run.name,
        tuple(diff_conditions(a.run.manifest, b.run.manifest, vary, observed)),
        tuple(item.run.name for item in (a, b) if not item.run.manifest),
        tuple(vary),
        matched,
        tuple(judge(estimates, find_resolutions(a.budgets, b.budgets), alpha, correction)),
        tuple(compare_quantiles(matched, 1 - alpha, rng)),
        tuple(compare_lengths(matched, a.budgets, b.budgets, 1 - alpha, rng)),
        count_unfinished(a, b),
        alpha,
        correction,
    )


def estimate_all(matched: Matched, level: float, rng: np.random.Generator) -> dict[str, Estimate]:
    """Estimate every metric that takes any time in either run."""
    return {
        metric: _estimate(matched, metric, level, rng)
        for metric in (TTFT, TPOT, *(name for name in COLUMN_OF if name not in (TTFT, TPOT)))
        if metric == TTFT or any(np.any(np.nan_to_num(side)) for side in matched.pool(metric))
    }


def _estimate(matched: Matched, metric: str, level: float, rng: np.random.Generator) -> Estimate:
    if matched.paired:
        return estimate_pairs(*matched.pool(metric), level, rng)
    sides = ([stratum.a[metric] for stratum in matched.strata], [stratum.b[metric] for stratum in matched.strata])
    return estimate_strata(*sides, level, rng)


def compare_lengths(
    matched: Matched, a: pl.DataFrame, b: pl.DataFrame, level: float, rng: np.random.Generator
) -> list[LengthDifference]:
    """Compare TTFT per prompt-length bucket of pairs, or per stratum."""
    if not matched.paired:
        return [
            LengthDifference(stratum.name, estimate_strata([stratum.a[TTFT]], [stratum.b[TTFT]], level, rng))
            for stratum in matched.strata
        ]
    buckets = [name for name in a["bucket"].unique(maintain_order=True) if name is not None]
    order = a.group_by("bucket").agg(pl.col("prompt_tokens").min()).sort("prompt_tokens")["bucket"]
    found = []
    for bucket in sorted(buckets, key=list(order).index):
        part = match_pairs(a.filter(pl.col("bucket") == bucket), b.filter(pl.col("bucket") == bucket))
        if len(part.pool(TTFT)[0]) > 1:
            found.append(LengthDifference(f"{bucket} tokens", estimate_pairs(*part.pool(TTFT), level, rng)))
    return found


def find_sources(budgets: pl.DataFrame) -> str:
    """Name what the TTFT of a run was read from: router, engine, or both."""
    return "+".join(sorted(budgets["ttft_source"].unique().drop_nulls()))


def count_unfinished(a: Breakdown, b: Breakdown) -> tuple[tuple[int, int], tuple[int, int], float]:
    """Count requests that never finished; a connector that loses the slow ones must not look fast."""
    counts: list[tuple[int, int]] = [
        (int(item.summary["unfinished"]["count"]), int(item.summary["requests"])) for item in (a, b)
    ]
    table: Any = [[lost, whole - lost] for lost, whole in counts]
    return counts[0], counts[1], float(stats.fisher_exact(table).pvalue)


def find_share_explained(comparison: Comparison) -> float | None:
    """Find the share of the TTFT difference that lies in segments, rather than in the residual."""
    by_name = {verdict.name: verdict.estimate.difference for verdict in comparison.verdicts}
    whole = by_name[TTFT]
    return 1 - by_name.get(RESIDUAL, 0.0) / whole if whole else None

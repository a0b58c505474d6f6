"""What the rules about one segment of the budget have in common."""

from __future__ import annotations

import polars as pl

from ..finding import Finding, Rule
from ..thresholds import AFFECTED, FEW, MATERIAL, MATERIAL_MS, NS_PER_MS, TYPICAL


def find_material(budgets: pl.DataFrame, segment: str) -> pl.DataFrame:
    """Requests in which a segment is a material part of the TTFT, whatever clocks and polls may err; the worst first.

    A clock that is off by `disorder` takes that much from one segment between hosts and gives it to another.
    """
    value = pl.col(f"seg_{segment}")
    sure = value - pl.col("disorder").fill_null(0)
    doubt = pl.col(f"unc_{segment}").fill_null(0)
    return budgets.filter(
        (sure >= MATERIAL * pl.col("ttft")) & (sure >= MATERIAL_MS * NS_PER_MS) & (value > doubt)
    ).sort(f"seg_{segment}", descending=True)


def is_common(affected: int, of: int, share: float = AFFECTED) -> bool:
    """Whether that many of so many are more than single requests' stories."""
    return affected >= FEW and affected >= share * of


def judge_segment(rule: Rule, segment: str, affected: pl.DataFrame, of: int, what: str) -> Finding | None:
    """Make a finding of requests in which one segment matters, if that is typical of the run."""
    if not is_common(affected.height, of, TYPICAL):
        return None
    cost = affected[f"seg_{segment}"]
    shown = affected.with_columns(pl.col(f"seg_{segment}").alias(f"{segment}_ns"), pl.col("ttft").alias("ttft_ns"))
    middle = float(cost.median() or 0.0) / NS_PER_MS  # type: ignore[arg-type]
    return rule.find(
        f"{what}: {segment} {middle:.0f} ms at the median of {affected.height} requests",
        shown,
        of,
        columns=("request_id", f"{segment}_ns", "ttft_ns"),
        cost=cost,
    )

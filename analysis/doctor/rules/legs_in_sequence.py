"""The router runs the two legs one after the other, so push is slower than pull.

In push D's registration should be waiting when the prompt is done. A router that sends the decode leg after
prefill's answer makes it late every time.

Finding: in 90 % of the push requests the decode leg left the router after prefill's answer (without a router's
spans: D had the request only after the prompt was done), and the wait for it is material.

Remedy: send both legs at once.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment

SEQUENTIAL = 0.9
"""Below this share it is not the router's way of working but single late legs (`late-decode-leg`)."""


def select_sequential(budgets: pl.DataFrame) -> pl.DataFrame:
    """Push requests whose decode leg began after the prefill leg was over."""
    by_router = pl.col("r_decode_start") >= pl.col("r_prefill_end")
    by_engines = pl.col("d_start") >= pl.col("p_end")
    return budgets.filter(pl.col("mode") == "push", pl.coalesce(by_router, by_engines))


def is_sequential(budgets: pl.DataFrame) -> bool:
    """Whether a router works leg after leg."""
    pushes = budgets.filter((pl.col("mode") == "push") & pl.col("reg_seen").is_not_null())
    return pushes.height > 0 and select_sequential(pushes).height >= SEQUENTIAL * pushes.height


def check(facts: Facts) -> Finding | None:
    """Pushes that wait for a decode leg that was sent after prefill."""
    if not is_sequential(facts.budgets):
        return None
    affected = find_material(select_sequential(facts.budgets), "pairing")
    return judge_segment(RULE, "pairing", affected, facts.budgets.height, "the legs run one after the other")


RULE = Rule(
    "legs-in-sequence",
    WARNING,
    "push: send both legs at once; the router must know the prefill engine's coordinates beforehand and "
    "not wait for its answer",
    check,
    cases=(9,),
)

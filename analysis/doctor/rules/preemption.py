"""Requests lose their blocks while they decode, and their KV is computed again.

Finding: steps that are slow because of preemptions (`step.slow`) take at least 1 % of an engine's time beyond their
bound, in five steps or more.

Remedy: room in the KV cache; held blocks (`kvlens_held_blocks`) take part of it.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._steps import add_excess, stolen_time


def check(facts: Facts) -> Finding | None:
    """Engines that preempt."""
    slow = add_excess(facts).filter(pl.col("cause") == "preemption")
    worst = stolen_time(slow, facts)
    if worst.is_empty():
        return None
    return RULE.find(
        f"preemptions take {worst['share'][0]:.1%} of {worst['engine'][0]}'s time",
        slow.sort("excess_ns", descending=True),
        facts.spans("step.slow").height,
        columns=("engine", "excess_ns", "took_ns"),
    )


RULE = Rule(
    "preemption",
    WARNING,
    "more KV cache (--gpu-memory-utilization), fewer sequences (--max-num-seqs) or more decode engines; "
    "blocks held for transfers count against the cache",
    check,
    cases=(),
)

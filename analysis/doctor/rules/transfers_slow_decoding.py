"""Posting and polling transfers slows the steps in which others decode: their TPOT pays.

Finding: steps that are slow because of the post, the poll or the save (`step.slow`) take at least 1 % of an
engine's time beyond their bound, in five steps or more. 1 % is what kvlens itself may cost at most; less is not
worth a change.

Remedy: less connector work on the engine thread.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._steps import add_excess, stolen_time

CAUSES = ("post", "poll", "save")


def check(facts: Facts) -> Finding | None:
    """Engines whose steps the connector slows."""
    slow = add_excess(facts).filter(pl.col("cause").is_in(CAUSES))
    worst = stolen_time(slow, facts)
    if worst.is_empty():
        return None
    affected = slow.filter(pl.col("engine").is_in(worst["engine"].implode())).sort("excess_ns", descending=True)
    return RULE.find(
        f"transfer work on the engine thread takes {worst['share'][0]:.1%} of {worst['engine'][0]}'s time",
        affected,
        facts.spans("step.slow").height,
        columns=("engine", "cause", "excess_ns", "took_ns"),
    )


RULE = Rule(
    "transfers-slow-decoding",
    WARNING,
    "move posting off the engine thread (push, or a vLLM with a push writer); fewer descriptors per post "
    "(--block-size); spread arrivals over more decode engines",
    check,
    cases=(1,),
)

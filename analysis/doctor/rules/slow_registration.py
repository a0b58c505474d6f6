"""D has allocated its blocks and P learns of it late (push).

A registration is a NIXL notification that D's worker sends at the start of a step; P's worker reads it between its
own.

Finding: `registration` (after the prompt was done, so on the critical path) is at least 20 % of the TTFT and 20 ms,
in a third of the requests.

Remedy: shorter steps on D, and on P when it is busy with long chunks.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which registration is a material part of the TTFT."""
    affected = find_material(facts.budgets, "registration")
    return judge_segment(
        RULE,
        "registration",
        affected,
        facts.budgets.height,
        "the decode engine had its blocks and prefill did not know",
    )


RULE = Rule(
    "slow-registration",
    WARNING,
    "shorten the decode engine's steps (--max-num-batched-tokens): a registration leaves with the next one",
    check,
    cases=(1,),
)

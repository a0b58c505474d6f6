"""The decode leg of a push comes after the prompt was done, though the router does not run the legs in sequence.

Finding: `pairing` (prompt done until D's scheduler has the request) is at least 20 % of the TTFT and 20 ms in a
third of the requests, and `legs-in-sequence` does not apply.

Remedy: what holds the decode leg back: a queue in the router, D's API servers, retries.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment
from .legs_in_sequence import is_sequential


def check(facts: Facts) -> Finding | None:
    """Pushes that wait for a decode leg, though legs overlap otherwise."""
    if is_sequential(facts.budgets):
        return None
    affected = find_material(facts.budgets, "pairing")
    return judge_segment(RULE, "pairing", affected, facts.budgets.height, "the decode leg came late")


RULE = Rule(
    "late-decode-leg",
    WARNING,
    "push: send the decode leg no later than the prefill leg; look at what the router does between the two",
    check,
    cases=(9,),
)

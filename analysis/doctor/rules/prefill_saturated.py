"""Prompts wait longer for P than P computes them.

In a queue with one server and steady work the wait equals the service time at two thirds of its capacity (M/D/1:
wait = load / (2 (1 - load)) services) and grows without bound from there. No change of the hand-over helps then.

Finding: the median `prefill_queue` is at least the median `prefill_compute`, and `prefill_queue` is material in a
third of the requests.

Remedy: more prefill capacity.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests that wait for P, when the typical wait exceeds the typical computation."""
    budgets = facts.budgets
    waits, computes = budgets["seg_prefill_queue"].median(), budgets["seg_prefill_compute"].median()
    if waits is None or computes is None or waits < computes:  # type: ignore[operator]
        return None
    affected = find_material(budgets, "prefill_queue")
    return judge_segment(RULE, "prefill_queue", affected, budgets.height, "prompts queue at the prefill engine")


RULE = Rule(
    "prefill-saturated",
    WARNING,
    "more prefill engines, or longer chunks per step (--max-num-batched-tokens on the prefill engine); "
    "check that long prompts do not block short ones",
    check,
    cases=(),
)

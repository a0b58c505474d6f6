"""The prompt is done on P, and D does not have the request yet (pull).

Symptom: P and D both report a low TTFT, the user sees a high one. The time between the end of prefill and the
arrival at D belongs to neither engine: it is P's answer, the router and D's front end.

Finding: `handoff_dispatch` is at least 20 % of the TTFT and 20 ms, in a third of the requests. Prefill is counted
once.

Remedy: the router's dispatch (connection re-use, no buffering), its distance to the engines, D's API servers.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which handoff_dispatch is a material part of the TTFT."""
    affected = find_material(facts.budgets, "handoff_dispatch")
    return judge_segment(
        RULE,
        "handoff_dispatch",
        affected,
        facts.budgets.height,
        "the prompt was done and the decode engine had no request yet",
    )


RULE = Rule(
    "slow-router",
    WARNING,
    "send the decode leg as soon as prefill has answered: keep connections open, do not buffer the "
    "answer; more API servers on the decode engine (--api-server-count)",
    check,
    cases=(1, 2),
)

"""The client has sent the request and the router has not passed it on.

Finding: `route` is at least 20 % of the TTFT and 20 ms, in a third of the requests.

Remedy: cores and workers for the router; limits that make it hold requests back on purpose.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which route is a material part of the TTFT."""
    affected = find_material(facts.budgets, "route")
    return judge_segment(
        RULE,
        "route",
        affected,
        facts.budgets.height,
        "requests waited at the router before they were sent to prefill",
    )


RULE = Rule(
    "slow-routing",
    WARNING,
    "give the router free cores and more workers; look at its admission limits and its look-ups before it sends",
    check,
    cases=(),
)

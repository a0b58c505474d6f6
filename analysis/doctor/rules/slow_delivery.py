"""The first token exists on D and reaches the client late.

Detokenisation, D's API server, the router and every proxy on the way are in it.

Finding: `delivery` is at least 20 % of the TTFT and 20 ms, in a third of the requests.

Remedy: no buffering of event streams, more API servers, a router with free cores.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which delivery is a material part of the TTFT."""
    affected = find_material(facts.budgets, "delivery")
    return judge_segment(
        RULE, "delivery", affected, facts.budgets.height, "the token existed and did not reach the client"
    )


RULE = Rule(
    "slow-delivery",
    WARNING,
    "no buffering of event streams in proxies; more API servers on the decode engine (--api-server-count)",
    check,
    cases=(2,),
)

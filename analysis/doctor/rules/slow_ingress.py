"""The request was sent to P and P's scheduler gets it late.

Tokenising a long prompt, a busy API server and the network are in it.

Finding: `prefill_ingress` is at least 20 % of the TTFT and 20 ms, in a third of the requests.

Remedy: more API servers, prompts as token ids, connection re-use in the router.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which prefill_ingress is a material part of the TTFT."""
    affected = find_material(facts.budgets, "prefill_ingress")
    return judge_segment(
        RULE,
        "prefill_ingress",
        affected,
        facts.budgets.height,
        "the prefill engine's front end was slow to hand requests over",
    )


RULE = Rule(
    "slow-ingress",
    WARNING,
    "more API servers on the prefill engine (--api-server-count); prompts as token ids; connection re-use"
    " in the router",
    check,
    cases=(2,),
)

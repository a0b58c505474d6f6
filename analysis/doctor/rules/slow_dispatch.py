"""Both sides are ready and the transfer is not posted.

In push the writer thread has to wake up and get the interpreter; in pull the read is posted at the start of the
next engine step. Handshakes are not counted here (see `handshake-on-path`).

Finding: `dispatch` is at least 20 % of the TTFT and 20 ms, in a third of the requests.

Remedy: a free core for the push writer, shorter steps on a pulling decode engine.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which dispatch is a material part of the TTFT."""
    affected = find_material(facts.budgets, "dispatch")
    return judge_segment(
        RULE, "dispatch", affected, facts.budgets.height, "both sides were ready and nothing was posted"
    )


RULE = Rule(
    "slow-dispatch",
    WARNING,
    "push: a free core for the prefill engine's push writer thread; pull: shorter decode steps (--max-"
    "num-batched-tokens), reads are posted when a step begins",
    check,
    cases=(1,),
)

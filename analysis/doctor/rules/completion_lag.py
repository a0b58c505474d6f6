"""The bytes have landed and the decode scheduler does not know.

Symptom: the first token comes 200 ms after prefill while the transfer itself takes 29 ms. vLLM looks for finished
transfers once per engine step, so a long step (a large prefill chunk, a big batch) delays every completion behind
it.

Finding: `completion_lag` is at least 20 % of the TTFT, at least 20 ms and more than the uncertainty of the landing,
in a third of the requests.

Remedy: shorter steps on the engine that polls.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which completion_lag is a material part of the TTFT."""
    affected = find_material(facts.budgets, "completion_lag")
    return judge_segment(
        RULE,
        "completion_lag",
        affected,
        facts.budgets.height,
        "the bytes were there and the scheduler was not told",
    )


RULE = Rule(
    "completion-lag",
    WARNING,
    "shorten the steps of the engine that polls: --max-num-batched-tokens and --max-num-seqs on the decode engine",
    check,
    cases=(1,),
)

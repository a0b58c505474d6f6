"""The decode engine does not admit the request: no free blocks or no free slot.

Finding: `decode_admission` is at least 20 % of the TTFT and 20 ms, in a third of the requests. In push only the
part after the prompt was done counts; what passed beside prefill is hidden.

Remedy: more KV cache or slots on D, more decode engines. Blocks held for nothing (`aborted-holds-blocks`) make it
worse.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which decode_admission is a material part of the TTFT."""
    affected = find_material(facts.budgets, "decode_admission")
    return judge_segment(
        RULE, "decode_admission", affected, facts.budgets.height, "the decode engine had no room for the blocks"
    )


RULE = Rule(
    "decode-admission",
    WARNING,
    "more KV cache on the decode engine (--gpu-memory-utilization), more slots (--max-num-seqs) or more decode engines",
    check,
    cases=(),
)

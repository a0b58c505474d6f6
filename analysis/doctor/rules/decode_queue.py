"""The KV is on D, the scheduler knows, and the first decode step is not scheduled.

Finding: `decode_queue` is at least 20 % of the TTFT and 20 ms, in a third of the requests.

Remedy: room in D's batch (`--max-num-seqs`), more decode engines, no prompt computation on D.
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which decode_queue is a material part of the TTFT."""
    affected = find_material(facts.budgets, "decode_queue")
    return judge_segment(
        RULE,
        "decode_queue",
        affected,
        facts.budgets.height,
        "the KV was there and the first decode step was not scheduled",
    )


RULE = Rule(
    "decode-queue",
    WARNING,
    "room in the decode engine's batch (--max-num-seqs) or more decode engines; no prompt computation on "
    "decode engines",
    check,
    cases=(),
)

"""The NIXL submission call itself is slow.

A post competes for the interpreter and for a core with the engine's other threads (seen: a dedicated posting thread
raised it from 6.7 to 11.9 ms).

Finding: `post` is at least 20 % of the TTFT and 20 ms in a third of the requests, whose descriptors are not split
(see `fragmented-cache`).

Remedy: cores, threads, fewer descriptors.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._fragments import split_by_fragments
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests with a slow post that fragments do not explain."""
    affected = find_material(facts.budgets, "post")
    known = facts.budgets.filter(pl.col("bytes") > 0, pl.col("descriptors") > 0)
    split, _ = split_by_fragments(known)
    affected = affected.join(split.select("row"), on="row", how="anti", maintain_order="left")
    return judge_segment(RULE, "post", affected, facts.budgets.height, "submitting transfers is slow")


RULE = Rule(
    "slow-post",
    WARNING,
    "free cores for the thread that posts; num_threads in kv_connector_extra_config; fewer, larger "
    "descriptors (--block-size)",
    check,
    cases=(1,),
)

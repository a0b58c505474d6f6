"""Descriptors per transfer explode as memory fragments, and posts grow with them.

Seen in the field: 118 to 18,880 descriptors for the same bytes, post 0.46 to 46 ms.

Finding: at least three requests, and one in ten, needed four times as many descriptors per byte as the run's best
tenth, and their posts take twice as long per byte as the others'.

Remedy: fewer, larger pieces.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._fragments import split_by_fragments
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Requests with split descriptors and slow posts."""
    known = facts.budgets.filter(pl.col("bytes") > 0, pl.col("descriptors") > 0, pl.col("seg_post").is_not_null())
    split, whole = split_by_fragments(known)
    if not is_common(split.height, known.height) or whole.is_empty():
        return None
    slow, usual = (float((part["seg_post"] / part["bytes"]).median()) for part in (split, whole))  # type: ignore[arg-type]
    if slow < 2 * usual:
        return None
    many, few = (float(part["per_byte"].median()) for part in (split, whole))  # type: ignore[arg-type]
    return RULE.find(
        f"{split.height} transfers needed {many / few:.0f} times the descriptors, {slow / usual:.1f} times the post",
        split.sort("per_byte", descending=True).with_columns(post_ns=pl.col("seg_post")),
        known.height,
        columns=("request_id", "descriptors", "bytes", "post_ns"),
        cost=split["seg_post"],
    )


RULE = Rule(
    "fragmented-cache",
    WARNING,
    "larger blocks (--block-size) on both engines, and a restart when fragmentation grows with an engine's uptime",
    check,
    cases=(15,),
)

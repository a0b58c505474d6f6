"""The next turn's prompt is no continuation of what D holds: a readback then fetches KV of other tokens, with HTTP 200.

That happens when a client edits the history or strips the reasoning from it. vLLM compares numbers of tokens only. With
kvlens on both engines D's parameters carry a keyed digest of every block, and P compares them before the first token.

Finding: one decision with `prefix_match` no. An error when such blocks were fetched; a warning when all were declined
for another reason.

Remedy: the router must not offer blocks for an edited history.
"""

from __future__ import annotations

import polars as pl

from ...reuse.decisions import find_mismatches
from ..facts import Facts
from ..finding import ERROR, WARNING, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Decisions whose prompt does not begin as D's sequence does."""
    wrong = find_mismatches(facts.decisions)
    if wrong.is_empty():
        return None
    fetched = wrong.filter("got_wrong_kv").height
    words = f"{fetched} of them fetched KV of other tokens: their answers are wrong" if fetched else "none was fetched"
    return RULE.find(
        f"{wrong.height} prompts are no continuation of what the decode engine holds; {words}",
        wrong.with_columns(request=pl.coalesce("key", "id")),
        facts.decisions.filter(pl.col("prefix_match").is_in(["yes", "no"])).height,
        columns=("request", "reason", "prefix_mismatch_block", "prefix_blocks", "fetch_tokens"),
        severity=ERROR if fetched else WARNING,
    )


RULE = Rule(
    "wrong-prefix",
    ERROR,
    "let the router compare the history before it offers blocks (or forget a conversation whose history the client "
    "edits or strips of reasoning); until then a kv_recompute_threshold above the context length fetches nothing",
    check,
)

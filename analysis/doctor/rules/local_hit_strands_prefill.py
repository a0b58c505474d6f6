"""D found the whole prompt in its own cache, so P's blocks wait for nobody until their lease ends (push).

Found in vLLM's code: `NixlPushConnector.update_state_after_alloc` returns without a registration when no external
tokens are left, and nothing else tells P. In pull an empty read frees the blocks.

Finding: a push request without external tokens on D whose lease on P ended as `expired` (or was open at the end).
The computation on P was for nothing as well.

Remedy: routing that knows D's cache, or no prefix cache on D.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._ledger import join_leases


def check(facts: Facts) -> Finding | None:
    """Pushes that D served from its own cache."""
    held = join_leases(facts)
    stranded = held.filter(
        (pl.col("mode") == "push") & pl.col("d_id").is_not_null() & (pl.col("external_tokens") == 0),
        pl.col("outcome").is_in(["expired", "unknown"]) & ~pl.col("touched"),
        pl.col("d_told").is_not_null() & (pl.col("lease_end") > pl.col("d_first")),
    ).sort("held_ns", descending=True)
    if stranded.is_empty():
        return None
    return RULE.find(
        f"{stranded.height} prompts were prefilled for a decode engine that had them; "
        f"{int(stranded['blocks'].fill_null(0).sum())} blocks were held until the lease ended",
        stranded,
        held.height,
        columns=("request_id", "prompt_tokens", "held_ns", "blocks"),
    )


RULE = Rule(
    "local-hit-strands-prefill",
    WARNING,
    "do not prefill remotely what decode has cached: route by prefix, or turn prefix caching off on the "
    "decode engine (--no-enable-prefix-caching); a shorter kv_lease_duration limits the loss",
    check,
    cases=(),
)

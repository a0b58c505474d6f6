"""Two engines cannot talk to each other: their handshake fails.

A compatibility hash holds the exact vLLM version, the model, dtypes, cache layout and (0.29 and later) the transfer
mode; any difference is refused.

Finding: one failed handshake; the evidence has the reason.

Remedy: by reason. `compatibility_hash_mismatch`: equal versions and settings. `engine_id_mismatch`: the router's
coordinates point to another or a restarted engine. `timeout`: the side channel (`VLLM_NIXL_SIDE_CHANNEL_HOST`,
port, network policy) is not reachable.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule

REMEDIES = {
    "engine_id_mismatch": "the router names another engine: refresh remote_engine_id, remote_port after restarts",
    "timeout": "the peer's VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT must be reachable from here",
}


def check(facts: Facts) -> Finding | None:
    """Failed handshakes."""
    shakes = facts.spans("handshake")
    failed = shakes.filter(pl.col("outcome") == "error")
    if failed.is_empty():
        return None
    reason = failed["reason"].mode().sort()[0] or "unknown reason"
    return RULE.find(
        f"{failed.height} of {shakes.height} handshakes failed: {reason}",
        failed.with_columns(took_ns=pl.col("finish") - pl.col("begin")),
        shakes.height,
        columns=("engine", "peer", "reason", "took_ns"),
        remedy=REMEDIES.get(reason),
    )


RULE = Rule(
    "handshake-refused",
    ERROR,
    "make vLLM's version, model, dtype, KV layout, attention backend and transfer mode equal on both engines",
    check,
    cases=(),
)

"""Incomplete push parameters: vLLM's own code raises a KeyError and the engine ends.

`NixlPushConnector.update_state_after_alloc` takes `remote_engine_id`, `remote_host`, `remote_port` and `tp_size`
from the parameters without looking whether they are there.

Finding: one failure whose error is a KeyError, or one that names the parameters.

Remedy: complete parameters. kvlens leaves the outcome as it is in stock vLLM.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Failures that come from missing parameters."""
    broken = facts.spans("failure").filter(
        (pl.col("error_type") == "KeyError") | pl.col("failure_type").str.contains("(?i)param")
    )
    if broken.is_empty():
        return None
    return RULE.find(
        f"{broken.height} requests carried incomplete transfer parameters",
        broken.with_columns(request=pl.col("key")),
        facts.requests.height,
        columns=("request", "engine", "failure_type", "error_type"),
    )


RULE = Rule(
    "incomplete-parameters",
    ERROR,
    "fill all of remote_engine_id, remote_host, remote_port, tp_size in the router's kv_transfer_params "
    "of the decode leg; a KeyError there ends the engine",
    check,
    cases=(11,),
)

"""Incomplete transfer parameters: no readback, and in push vLLM's own code raises a KeyError and the engine ends.

`NixlPushConnector.update_state_after_alloc` takes `remote_engine_id`, `remote_host`, `remote_port` and `tp_size`
from the parameters without looking whether they are there. In bidirectional mode a turn whose offer lacks one of them
is computed again without a word.

Finding: one `validation` event with a missing field or a wrong type, one decision for that reason, or one failure whose
error is a KeyError.

Remedy: complete parameters. kvlens leaves the outcome as it is in stock vLLM.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, WARNING, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Requests whose parameters lack something, however that came to light."""
    broken = facts.spans("failure").filter(
        (pl.col("error_type") == "KeyError") | pl.col("failure_type").str.contains("(?i)param")
    )
    invalid = facts.validations.filter(pl.col("reason").is_in(["missing_field", "wrong_type"]))
    declined = facts.decisions.filter(pl.col("reason") == "incomplete_metadata")
    found = pl.concat(
        [
            broken.select("id", "key", "engine", what=pl.coalesce("failure_type", "error_type"), field=pl.lit("")),
            invalid.select("id", "key", "engine", what="reason", field="field"),
            declined.select("id", "key", "engine", what="reason", field=pl.lit("")),
        ]
    ).unique("id", keep="first", maintain_order=True)
    if found.is_empty():
        return None
    return RULE.find(
        f"{found.height} requests carried incomplete transfer parameters",
        found.with_columns(request=pl.col("key")),
        max(facts.requests.height, found.height),
        columns=("request", "engine", "what", "field"),
        severity=WARNING if broken.is_empty() else ERROR,
    )


RULE = Rule(
    "incomplete-parameters",
    ERROR,
    "fill all of remote_engine_id, remote_request_id, remote_block_ids, remote_host, remote_port, tp_size in the "
    "router's kv_transfer_params; on the decode leg of a push a KeyError there ends the engine",
    check,
    cases=(11,),
)

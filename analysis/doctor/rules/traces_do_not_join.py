"""The router, P and D have different trace ids for one request: the front end dropped `traceparent`.

kvlens still joins the spans by request id; other tools (Tempo, Jaeger) show three traces.

Finding: in at least three requests, and one in ten, the known trace ids of router, P and D differ.

Remedy: one trace context on both legs, or none at all: then all derive the same id from the request id.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import is_common


def check(facts: Facts) -> Finding | None:
    """Requests with more than one trace id."""
    names = ("r_trace", "p_trace", "d_trace")
    ids = pl.concat_list(pl.when(pl.col(name) != "").then(pl.col(name)) for name in names).list.drop_nulls()
    joined = facts.requests.with_columns(ids=ids).filter(pl.col("ids").list.len() > 1)
    apart = joined.filter(pl.col("ids").list.n_unique() > 1)
    if not is_common(apart.height, joined.height):
        return None
    return RULE.find(
        f"{joined.height - apart.height} of {joined.height} requests have one trace; the others fall apart",
        apart,
        joined.height,
        columns=("request_id", *names),
    )


RULE = Rule(
    "traces-do-not-join",
    WARNING,
    "let the router send one traceparent and one X-Request-Id on both legs; vLLM keeps traceparent with "
    '--otlp-traces-endpoint, else put it into kv_transfer_params["traceparent"]',
    check,
    cases=(14,),
)

"""An engine that should send spans sends none.

Symptom: spans never arrive from a forked process, or an exporter drops them all. Per process `kvlens_spans_total`
says what was queued, exported and dropped.

Finding: the manifest lists an instrumented engine that no span came from.

Remedy: the connector's module path and the exporter of that engine.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Engines of the manifest that nothing was heard of."""
    expected = [
        (str(engine["id"]), str(engine.get("role", "")))
        for engine in facts.manifest.get("engines", ())
        if isinstance(engine, dict) and engine.get("id") and engine.get("instrumented", True)
    ]
    # A data-parallel engine has its rank after its id.
    heard = facts.engines | {engine.rsplit("_dp", maxsplit=1)[0] for engine in facts.engines}
    silent = [(engine, role) for engine, role in expected if engine not in heard]
    if not silent:
        return None
    return RULE.find(
        f"no spans from {', '.join(engine for engine, _ in silent)} of {len(expected)} engines",
        pl.DataFrame(silent, schema=["engine", "role"], orient="row"),
        len(expected),
        columns=("engine", "role"),
    )


RULE = Rule(
    "engine-silent",
    ERROR,
    "set kv_connector_module_path on that engine and OTEL_TRACES_EXPORTER=kvlens; look at "
    "kvlens_spans_total by state on its /metrics (queued, exported, dropped)",
    check,
    cases=(13,),
)

"""The JSON document of `kvlens compare --json`; times in ms.

Schema history: 1, first release.
"""

from __future__ import annotations

import math
from typing import Any

from .comparison import Comparison
from .estimate import Estimate
from .gate import Gate
from .verdict import Verdict
from .words import list_conditions, list_notes, write_headline

SCHEMA = 1


def render_comparison(comparison: Comparison, gate: Gate | None = None) -> dict[str, Any]:
    """Render a comparison as plain values, NaN as null."""
    (lost_a, all_a), (lost_b, all_b), p = comparison.unfinished
    whole = {
        "schema": SCHEMA,
        "a": comparison.a,
        "b": comparison.b,
        "headline": write_headline(comparison),
        "conditions": {
            "comparable": not comparison.undeclared and not comparison.unknown,
            "vary": ["connector", *comparison.vary],
            "unknown": list(comparison.unknown),
            "warnings": list_conditions(comparison),
            "differences": [vars(difference) for difference in comparison.differences],
        },
        "method": {
            "matched_by": "request" if comparison.matched.paired else "stratum",
            "strata": [{"name": s.name, "a": s.size[0], "b": s.size[1]} for s in comparison.matched.strata],
            "left_out": dict(zip("ab", comparison.matched.left_out, strict=True)),
            "alpha": comparison.alpha,
            "correction": comparison.correction,
        },
        "rows": [_render_verdict(verdict) for verdict in comparison.verdicts],
        "quantiles": [vars(one) for one in comparison.quantiles],
        "lengths": [{"name": one.name, **_render_estimate(one.estimate)} for one in comparison.lengths],
        "unfinished": {"a": lost_a, "of_a": all_a, "b": lost_b, "of_b": all_b, "p": p},
        "notes": list_notes(comparison),
        "gate": gate and {"passed": gate.passed, "text": gate.describe()},
    }
    return {key: _clean(value) for key, value in whole.items()}


def _render_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "verdict": verdict.word,
        **_render_estimate(verdict.estimate),
        "p_adjusted": verdict.p_adjusted,
        "relative": verdict.relative,
        "of_ttft": verdict.of_ttft,
        "resolution_ms": verdict.resolution,
        "detectable_ms": verdict.detectable,
        "only_in": verdict.only_in,
    }


def _render_estimate(found: Estimate) -> dict[str, Any]:
    return {
        "n": dict(zip("ab", found.requests, strict=True)),
        "units": found.units,
        "batch": found.batch,
        "mean_a_ms": found.mean_a,
        "mean_b_ms": found.mean_b,
        "difference_ms": found.difference,
        "interval_ms": [found.low, found.high],
        "p": found.p,
    }


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""A comparison -> whether a CI gate lets the second run pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .comparison import Comparison
from .matching import TPOT, TTFT
from .verdict import TOO_FEW, WORSE, Verdict

EXIT_CODE = 3

GATED = (TTFT, TPOT)


@dataclass(frozen=True)
class Gate:
    """What the gate says: regressions hold it shut; unjudged rows let it pass without evidence."""

    threshold: float
    regressions: tuple[str, ...]
    unjudged: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the second run may pass."""
        return not self.regressions

    def describe(self) -> str:
        """Describe the outcome in one line."""
        if self.regressions:
            return f"GATE FAILED: {'; '.join(self.regressions)} (threshold {self.threshold:.1%})"
        doubt = f"; too few requests to judge {', '.join(self.unjudged)}" if self.unjudged else ""
        return f"gate passed: no significant regression above {self.threshold:.1%}{doubt}"


def apply_gate(comparison: Comparison, threshold: float, names: Collection[str] = GATED) -> Gate:
    """Apply the gate to the named rows.

    threshold: share of A's mean for TTFT and TPOT, of A's mean *TTFT* for a segment: a segment of microseconds that
    doubles is no regression.
    """
    watched = [verdict for verdict in comparison.verdicts if verdict.name in names]
    return Gate(
        threshold,
        tuple(_word(verdict) for verdict in watched if verdict.word == WORSE and _rise(verdict) >= threshold),
        tuple(verdict.name for verdict in watched if verdict.word == TOO_FEW),
    )


def _rise(verdict: Verdict) -> float:
    share = verdict.relative if verdict.name in GATED else verdict.of_ttft
    return float("inf") if share is None else share


def _word(verdict: Verdict) -> str:
    whole = "" if verdict.name in GATED else " of TTFT"
    return f"{verdict.name} worse by {verdict.estimate.difference:.2f} ms ({_rise(verdict):+.1%}{whole})"

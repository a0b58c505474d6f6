"""A comparison in sentences: the headline, and what a reader must know beside the figures."""

from __future__ import annotations

from .comparison import Comparison
from .matching import RESIDUAL, TPOT, TTFT
from .verdict import BETTER, NO_EVIDENCE, TOO_FEW, UNRESOLVED, WORSE, Verdict

NAME = {TTFT: "TTFT", TPOT: "TPOT"}


def write_headline(comparison: Comparison) -> str:
    """Write what is known of TTFT and TPOT, and which segments say why."""
    parts = [word_verdict(verdict) for verdict in comparison.verdicts if verdict.name in NAME]
    moved = [
        verdict
        for verdict in comparison.verdicts
        if verdict.name not in (*NAME, RESIDUAL) and verdict.word in (BETTER, WORSE)
    ]
    largest = sorted(moved, key=lambda verdict: -abs(verdict.estimate.difference))[:3]
    if largest:
        parts.append(
            "largest significant changes: " + ", ".join(f"{v.name} {v.estimate.difference:+,.1f} ms" for v in largest)
        )
    return f"{comparison.b} against {comparison.a}: " + "; ".join(parts) + "."


def word_verdict(verdict: Verdict) -> str:
    """Word one verdict."""
    name, found = NAME.get(verdict.name, verdict.name), verdict.estimate
    if verdict.word == TOO_FEW:
        return f"{name} not judged ({found.units} comparable requests are too few)"
    share = f" ({verdict.relative:+.1%})" if verdict.relative is not None else ""
    figures = f"{found.difference:+,.2f} ms{share}, interval {found.low:+,.2f} to {found.high:+,.2f}"
    if verdict.word == NO_EVIDENCE:
        # An interval stands on its own, a verdict among all rows: where they disagree, say what decided.
        beyond = f", p = {verdict.p_adjusted:.2g} among all rows" if found.low > 0 or found.high < 0 else ""
        return f"no evidence of a different {name} ({figures}{beyond})"
    if verdict.word == UNRESOLVED:
        return f"{name} unresolved ({figures}, smaller than the measurement's {verdict.resolution:.2f} ms)"
    return f"{name} {verdict.word}: {figures}"


def list_conditions(comparison: Comparison) -> list[str]:
    """List the warnings about conditions, the first lines of any output."""
    lines = [f"CONDITIONS UNKNOWN: {name} has no manifest.json" for name in comparison.unknown]
    if comparison.undeclared:
        groups = ", ".join(sorted({difference.group for difference in comparison.undeclared}))
        lines.append(
            f"NOT COMPARABLE: more than the connector changed ({groups});"
            " a difference below may come from any of it, not from the connector"
        )
    return lines


def list_notes(comparison: Comparison) -> list[str]:
    """List assumptions and limits, one line each."""
    return [
        _note_matching(comparison),
        _note_error(comparison),
        *_note_batches(comparison),
        *_note_size(comparison),
        *_note_resolution(comparison),
        *_note_unfinished(comparison),
        "One run each: what varies from run to run (placement, neighbours, thermal state) is not in the intervals.",
    ]


def _note_matching(comparison: Comparison) -> str:
    matched = comparison.matched
    lost = "" if not any(matched.left_out) else "; left out {} of {a} and {} of {b}".format(
        *matched.left_out, a=comparison.a, b=comparison.b
    )  # fmt: skip
    if matched.paired:
        return f"Paired by request: same workload and seed, {matched.strata[0].size[0]} pairs{lost}."
    count = f"{len(matched.strata)} with requests of both runs" if matched.strata else "none has requests of both runs"
    return f"Workloads differ or are unknown: compared by stratum of prompt length and load ({count}){lost}."


def _note_error(comparison: Comparison) -> str:
    how = {
        "holm": f"the chance of any false better or worse among all rows is at most {comparison.alpha:.0%} (Holm)",
        "bh": f"at most {comparison.alpha:.0%} of the rows called better or worse are false on average (BH)",
        "none": f"each row errs with {comparison.alpha:.0%} on its own: with many rows, expect false ones",
    }[comparison.correction]
    test = "Wilcoxon" if comparison.matched.paired else "Stratified Mann-Whitney"
    return f"{test} tests, {how}; intervals are {1 - comparison.alpha:.0%} BCa bootstraps of the mean, each on its own."


def _note_batches(comparison: Comparison) -> list[str]:
    batches = {v.name: v.estimate.batch for v in comparison.verdicts if v.estimate.batch > 1}
    if not batches:
        return []
    listed = ", ".join(f"{name} {batch}" for name, batch in batches.items())
    return [f"Neighbouring requests are alike (queueing): averaged in batches before testing ({listed})."]


def _note_size(comparison: Comparison) -> list[str]:
    units = max((verdict.estimate.units for verdict in comparison.verdicts), default=0)
    smallest = 2.0 ** (1 - units) * (len(comparison.verdicts) if comparison.correction != "none" else 1)
    if units and smallest > comparison.alpha:
        return [f"With {units} comparable requests no row can reach significance: send more (20 at least)."]
    return []


def _note_resolution(comparison: Comparison) -> list[str]:
    found = [f"{v.name} {v.resolution:.2f} ms" for v in comparison.verdicts if v.word == UNRESOLVED]
    return [f"Unresolved, as smaller than the measurement can tell: {', '.join(found)}."] if found else []


def _note_unfinished(comparison: Comparison) -> list[str]:
    (lost_a, all_a), (lost_b, all_b), p = comparison.unfinished
    if not lost_a and not lost_b:
        return []
    doubt = " Differently many: figures of the survivors flatter the run that lost more." if p <= 0.05 else ""
    return [
        f"Never finished: {lost_a} of {all_a} in {comparison.a}, {lost_b} of {all_b} in {comparison.b}"
        f" (Fisher p = {p:.3g}).{doubt}"
    ]

"""Decisions: fetch the KV of earlier turns or compute it again, on what grounds, at what cost; the threshold curve."""

from __future__ import annotations

from typing import Any

from ...render.decisions import LIMITS
from ...reuse.decisions import DecisionReport, report_decisions
from ...reuse.thresholds import word_range
from ...source import Session
from ..model import Chart, Heading, Notes, Report, Section, Table
from ..palette import COLOUR_OF_RUN, make_spec

ORDER = 65


def load(session: Session) -> DecisionReport:
    """Load the decisions of a run; KvlensError when it has none."""
    return report_decisions(session)


def build(report: Report) -> Section | None:
    """Build the section; None when no decision was recorded."""
    known = [(run.name, run.loaded["decisions"]) for run in report.runs if run.loaded.get("decisions") is not None]
    if not known:
        return None
    parts: list[Any] = [tabulate_reasons(known), *list_mismatches(known), *list_costs(known)]
    curves = [(name, one) for name, one in known if not one.curve.points.is_empty()]
    if curves:
        parts += [Heading("Threshold curve", "What kv_recompute_threshold would have been right."), draw_curves(curves)]
        parts.append(Notes([f"{name}: {one.curve.conclusion}" for name, one in curves] + [LIMITS]))
    lead = " ".join(_conclude(name, one) for name, one in known)
    return Section("Decisions", lead, parts)


def _conclude(name: str, one: DecisionReport) -> str:
    fetched = int(one.reasons.filter(one.reasons["reason"] == "fetched")["requests"].sum())
    wrong = one.mismatches.height
    lost = one.regret["lost_ms"]
    doubt = f" {wrong} prompts are no continuation of what was offered." if wrong else ""
    return (
        f"{name}: {fetched:,} of {one.decisions.height - one.repeats:,} requests fetched an earlier turn's KV;"
        f" by the estimates the other way would have saved {lost:,.1f} ms in all.{doubt}"
    )


def tabulate_reasons(known: list[tuple[str, DecisionReport]]) -> Table:
    """Tabulate the decisions by reason."""
    rows = [
        [name, row["engine"], row["decision"] or "-", row["reason"] or "-", f"{row['requests']:,}",
         _whole(row["prompt_tokens"]), _whole(row["fetch_tokens"]), f"{row['lost_ns'] / 1e6:,.1f}",
         "" if row["past_expiry_s"] is None else f"{row['past_expiry_s']:.1f}"]
        for name, one in known
        for row in one.reasons.iter_rows(named=True)
    ]  # fmt: skip
    head = ("run", "engine", "decision", "reason", "requests", "prompt p50", "a fetch saves p50", "lost ms",
            "s past expiry p50")  # fmt: skip
    return Table(head, rows, text_columns=4)


def list_mismatches(known: list[tuple[str, DecisionReport]]) -> list[Heading | Table]:
    """List prompts that are no continuation of what the decode engine holds."""
    rows = [
        [name, row["key"] or row["id"], row["reason"], str(row["prefix_mismatch_block"]), str(row["prefix_blocks"]),
         "wrong KV was fetched" if row["got_wrong_kv"] else ""]
        for name, one in known
        for row in one.mismatches.head(20).iter_rows(named=True)
    ]  # fmt: skip
    head = ("run", "request", "reason", "first wrong block", "of", "")
    title = Heading("Wrong prefixes", "The prompt does not begin as the sequence does whose KV was offered.")
    return [title, Table(head, rows, text_columns=3)] if rows else []


def list_costs(known: list[tuple[str, DecisionReport]]) -> list[Heading | Table]:
    """List what each way took, and how far its estimates were off."""
    rows = []
    for name, one in known:
        for side, words in (("fetch", "fetched"), ("recompute", "computed again")):
            took, judged = one.costs[side]["took_ms"], one.estimates[side]
            if took["count"]:
                error, covered = judged.get("error_ms", {}), judged.get("covered")
                rows.append([
                    name, words, f"{took['count']:,}", f"{took['p50']:,.1f}", f"{took['p90']:,.1f}",
                    f"{judged['checked']:,}", f"{error['p50']:+,.1f}" if error else "-",
                    "-" if covered is None else f"{covered:.0%}",
                ])  # fmt: skip
    head = ("run", "way", "requests", "took p50 ms", "p90", "estimates checked", "error p50 ms", "inside 10-90 %")
    title = Heading("What each way took", "Error: measured less estimated. An honest 10-90 % interval holds 80 %.")
    return [title, Table(head, rows, text_columns=2)] if rows else []


def draw_curves(curves: list[tuple[str, DecisionReport]]) -> Chart:
    """Draw threshold -> change of the mean TTFT with its 95 % interval; each step is drawn at its lowest threshold."""
    data = [
        {
            "run": name, "threshold": row["low"], "change": round(row["change_ms"], 4), "low": round(row["low_ms"], 4),
            "high": round(row["high_ms"], 4), "fetched": row["fetched_share"],
            "thresholds": word_range(row["low"], row["high"]),
        }
        for name, one in curves
        for row in one.curve.points.iter_rows(named=True)
    ]  # fmt: skip
    names = [name for name, _ in curves]
    colour = {"field": "run", "type": "nominal", "scale": {"domain": names, "range": list(COLOUR_OF_RUN[: len(names)])}}
    x = {"field": "threshold", "type": "quantitative", "axis": {"title": "kv_recompute_threshold, tokens"}}
    tooltip = [
        {"field": "run"}, {"field": "thresholds"}, {"field": "change", "format": "+,.2f", "title": "ms per request"},
        {"field": "low", "format": "+,.2f"}, {"field": "high", "format": "+,.2f"},
        {"field": "fetched", "format": ".0%"},
    ]  # fmt: skip
    y = {"type": "quantitative", "axis": {"title": "change of mean TTFT, ms"}}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "area", "interpolate": "step-after", "opacity": 0.2},
         "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}, "color": colour}},
        {"mark": {"type": "line", "interpolate": "step-after", "point": True},
         "encoding": {"x": x, "y": {"field": "change", **y}, "color": colour, "tooltip": tooltip}},
        {"mark": {"type": "rule", "strokeDash": [2, 2]}, "data": {"values": [{"zero": 0}]},
         "encoding": {"y": {"field": "zero", "type": "quantitative"}}},
    ]  # fmt: skip
    rows = [
        [entry["run"], entry["thresholds"], *(f"{entry[column]:+,.2f}" for column in ("change", "low", "high")),
         f"{entry['fetched']:.0%}"]
        for entry in data
    ]  # fmt: skip
    return Chart(
        make_spec(data, height=220, layer=layers),
        "Change of the mean TTFT per request against the recorded run by threshold; the band is its 95 % interval.",
        Table(("run", "threshold", "ms per request", "from", "to", "fetched"), rows, text_columns=2),
    )


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

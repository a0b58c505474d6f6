"""Decisions as terminal tables, the threshold curve as bars, and the JSON document of `kvlens decisions --json`.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ..reuse.check import Check
from ..reuse.decisions import DecisionReport
from ..reuse.thresholds import MIN_PAIRS, Correction, Curve, word_range
from .table import add_title, make_table

SCHEMA = 1
ROWS = 16
"""Intervals of the curve shown in a terminal; --json has all."""
HALF = 12
"""Characters on either side of the zero line of a bar."""
LIMITS = (
    "The curve keeps the queue as it was: a request that computes instead of fetching also delays others, which is not"
    " in it. It holds for this run's mix of turns."
)


def render_json(report: DecisionReport, checks: Sequence[Check] = ()) -> str:
    """Render a report, and checks of its curve, as a JSON document."""
    document = make_document(report)
    if checks:
        document["checks"] = [_check(one) for one in checks]
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def _check(one: Check) -> dict[str, Any]:
    measured = {"difference_ms": one.measured.difference, "low_ms": one.measured.low, "high_ms": one.measured.high}
    return {
        "run": one.run, "threshold": one.threshold, "predicted": vars(one.predicted),
        "measured": {**measured, "pairs": one.measured.requests[0]}, "fetched_share": one.fetched_share,
        "error_ms": one.error_ms, "is_inside": one.is_inside,
    }  # fmt: skip


def make_document(report: DecisionReport) -> dict[str, Any]:
    """Make the document; times in ms."""
    curve = report.curve
    return {
        "schema": SCHEMA,
        "run": {"name": report.run.name, **report.run.manifest},
        "decisions": to_ms(report.decisions.drop("unix", "shift", "begin", "finish")),
        "repeats": report.repeats,
        "reasons": to_ms(report.reasons),
        "prefixes": report.prefixes,
        "mismatches": report.mismatches.to_dicts(),
        "costs": report.costs,
        "estimates": report.estimates,
        "regret": report.regret,
        "threshold": {
            "verdict": curve.verdict,
            "conclusion": curve.conclusion,
            "curve": curve.points.to_dicts(),
            "corrections": {"fetch": vars(curve.fetch), "recompute": vars(curve.recompute)},
            "limits": LIMITS,
        },
    }


def to_ms(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Turn <name>_ns columns into <name>_ms and rows into plain values."""
    in_ms = {
        f"{name.removesuffix('_ns')}_ms": (pl.col(name) / 1e6).round(6)
        for name in frame.columns
        if name.endswith("_ns")
    }
    return frame.select(pl.exclude(r"^.*_ns$"), **in_ms).to_dicts()


def render_decisions(report: DecisionReport) -> RenderableType:
    """Render one run."""
    parts = [
        render_reasons(report), render_prefixes(report), render_costs(report), render_regret(report),
        render_curve(report.curve),
    ]  # fmt: skip
    return Group(*(piece for part in parts for piece in (part, Text())))


def render_reasons(report: DecisionReport) -> RenderableType:
    """Render the decisions by reason."""
    table = make_table()
    for name in ("engine", "decision", "reason"):
        table.add_column(name)
    for name in ("requests", "share", "prompt p50", "saves p50", "cached p50", "lost ms", "s past expiry p50"):
        table.add_column(name, justify="right")
    for row in report.reasons.iter_rows(named=True):
        past = row["past_expiry_s"]
        table.add_row(
            row["engine"], row["decision"] or "-", row["reason"] or "-", f"{row['requests']:,}",
            f"{row['requests'] / report.decisions.height:.1%}", _whole(row["prompt_tokens"]),
            _whole(row["fetch_tokens"]), _whole(row["local_tokens"]), f"{row['lost_ns'] / 1e6:.1f}",
            "" if past is None else f"{past:.1f}",
        )  # fmt: skip
    title = f"Decisions of {report.run.name}: {report.decisions.height} (tokens; saves: what a fetch would save)"
    note = (
        f"{report.repeats} are of attempts that the router sent again without an offer, as the fetch failed the first"
    )
    return Group(add_title(title, table), *([Text(note, "dim")] if report.repeats else []))


def render_prefixes(report: DecisionReport) -> RenderableType:
    """Render how many prompts matched what was offered, and those that did not."""
    counts = ", ".join(f"{name} {count}" for name, count in report.prefixes.items())
    if report.mismatches.is_empty():
        return Text(f"Prompt is a prefix of what the decode engine holds: {counts}")
    table = make_table()
    for name in ("request", "reason", "first wrong block", "of", "tokens offered", "decode engine", "its request", ""):
        table.add_column(name, overflow="fold")
    for row in report.mismatches.head(10).iter_rows(named=True):
        table.add_row(
            row["key"] or row["id"], row["reason"], str(row["prefix_mismatch_block"]), str(row["prefix_blocks"]),
            _whole(row["fetch_tokens"]), row["peer"], row["peer_id"],
            Text("wrong KV was fetched", "bold red") if row["got_wrong_kv"] else "",
        )  # fmt: skip
    return Group(
        add_title(f"Prompts that do not begin as what was offered: {report.mismatches.height}", table), Text(counts)
    )


def render_costs(report: DecisionReport) -> RenderableType:
    """Render what fetching and computing again took, and how far their estimates were off."""
    table = make_table()
    table.add_column("")
    for name in (
        "requests", "took p50 ms", "p90", "per 1,000 tokens p50", "estimates checked", "error p50 ms", "|error| p50",
        "in 10-90 %",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for side, words in (("fetch", "fetched"), ("recompute", "computed again")):
        took, per = (report.costs[side][name] for name in ("took_ms", "per_1000_tokens_ms"))
        judged = report.estimates[side]
        error = judged.get("error_ms", {})
        covered = judged.get("covered")
        table.add_row(
            words, str(took["count"]), _ms(took, "p50"), _ms(took, "p90"), _ms(per, "p50"),
            f"{judged['checked']} of {judged['known']} made", _ms(error, "p50"),
            f"{judged['abs_error_share_p50']:.0%}" if judged["checked"] else "-",
            "-" if covered is None else f"{covered:.0%}",
        )  # fmt: skip
    note = "error: measured less estimated; an honest 10-90 % interval holds 80 % of the measured values"
    return Group(add_title("What each way took, and how good the estimates were", table), Text(note, "dim"))


def render_regret(report: DecisionReport) -> RenderableType:
    """Render what the chosen way lost against the estimate of the other one."""
    regret = report.regret
    if not regret["known"]:
        return Text(f"Regret: unknown for all {regret['of']} requests (no estimate of the other way)")
    lines = [
        f"Regret: {regret['lost']} of {regret['known']} requests (of {regret['of']} in all) would have been faster the"
        f" other way, by the estimates: {regret['lost_ms']:.1f} ms lost; the others won {regret['won_ms']:.1f} ms."
    ]
    lines += [
        f"  {row['request']} ({row['reason']}, {row['fetch_tokens']} tokens): {row['regret_ms']:.1f} ms"
        for row in regret["worst"]
    ]
    return Text("\n".join(lines))


def render_curve(curve: Curve) -> RenderableType:
    """Render the threshold curve with a bar for every interval of thresholds, and what it says."""
    if curve.points.is_empty():
        return Text(f"Threshold: {curve.conclusion}")
    table = make_table()
    for name, side in (("threshold", "left"), ("ms per request", "right"), ("95 %", "right"), ("", "left"),
                       ("fetch", "right"), ("changed", "right"), ("", "left")):  # fmt: skip
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    shown = thin(curve.points)
    reach = max(abs(float(value)) for value in shown["change_ms"]) or 1.0
    for row in shown.iter_rows(named=True):
        marks = [word for word in ("recorded", "best") if row[f"is_{word}"]]
        marks += ["like the best"] if row["is_alike"] and not row["is_best"] else []
        unknown = f", {row['unknown']} unknown" if row["unknown"] else ""
        table.add_row(
            word_range(row["low"], row["high"]), f"{row['change_ms']:+.2f}",
            f"{row['low_ms']:+.2f} .. {row['high_ms']:+.2f}", draw_bar(row["change_ms"], reach),
            f"{row['fetched_share']:.0%}", f"{row['flipped']}{unknown}", ", ".join(marks),
        )  # fmt: skip
    title = "Threshold curve: change of the mean TTFT against this run (below zero: faster), share that tries to fetch"
    notes = [curve.conclusion, _word_corrections(curve), LIMITS]
    return Group(add_title(title, table), *(Text(note) for note in notes))


def render_checks(checks: Sequence[Check]) -> RenderableType:
    """Render what the curve predicted beside what runs with other thresholds measured."""
    table = make_table()
    table.add_column("run", overflow="fold")
    for name in ("threshold", "predicted ms", "measured ms", "off by", "fetched: predicted", "measured", "changed"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in checks:
        wide = (one.measured.high - one.measured.low) / 2
        unknown = f", {one.predicted.unknown} unknown" if one.predicted.unknown else ""
        table.add_row(
            one.run, str(one.threshold), f"{one.predicted.change_ms:+.1f} ± {one.predicted.reach_ms:.1f}",
            f"{one.measured.difference:+.1f} ± {wide:.1f}", f"{one.error_ms:+.1f}",
            f"{one.predicted.fetched_share:.0%}", f"{one.fetched_share:.0%}", f"{one.predicted.flipped}{unknown}",
            "within both uncertainties" if one.is_inside else Text("outside", "bold red"),
        )  # fmt: skip
    note = (
        "change of the mean TTFT per request, paired by request id; what varies from run to run is in the measured only"
    )
    return Group(add_title("The curve's prediction checked by other runs", table), Text(note, "dim"))


def thin(points: pl.DataFrame) -> pl.DataFrame:
    """Keep at most ROWS intervals: evenly spaced ones, the recorded and the best."""
    if points.height <= ROWS:
        return points
    step = (points.height - 1) / (ROWS - 3)
    places = {round(number * step) for number in range(ROWS - 2)}
    keep = pl.col("row").is_in(sorted(places)) | pl.col("is_best") | pl.col("is_recorded")
    return points.with_row_index("row").filter(keep).drop("row")


def draw_bar(value: float, reach: float) -> Text:
    """Draw a bar to the left (faster) or right (slower) of a zero line."""
    length = round(abs(value) / reach * HALF)
    left, right = ("█" * length, "") if value < 0 else ("", "█" * length)
    return Text.assemble((left.rjust(HALF), "green"), "│", (right.ljust(HALF), "red"))


def _word_corrections(curve: Curve) -> str:
    words = [_word_correction(name, one) for name, one in (("fetch", curve.fetch), ("compute", curve.recompute))]
    return f"Estimates: {'; '.join(words)}."


def _word_correction(name: str, one: Correction) -> str:
    if one.pairs < MIN_PAIRS:
        return f"{name} taken as estimated, ± {one.error:.0%} assumed ({one.pairs} could be checked, too few)"
    return f"{name} times {one.factor:.2f} ± {one.error:.2f} (from {one.pairs} that were also measured)"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ms(entry: dict[str, Any], name: str) -> str:
    return f"{entry[name]:.1f}" if name in entry else "-"

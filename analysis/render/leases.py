"""The lease ledger as terminal tables, and the JSON document of `kvlens leases --json`.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ..reuse.leases import LeaseReport
from ..reuse.ledger import REASONS, RUNNING
from ..reuse.retention import Retention
from .table import add_title, make_table

SCHEMA = 1
BAR = 24


def render_json(report: LeaseReport) -> str:
    """Render a report as its JSON document."""
    return json.dumps(make_document(report), ensure_ascii=False, allow_nan=False)


def make_document(report: LeaseReport) -> dict[str, Any]:
    """Make the document; times in s, memory in blocks and GB (10^9 bytes)."""
    retention = report.retention
    return {
        "schema": SCHEMA,
        "run": {"name": report.run.name, **report.run.manifest},
        "ledger": report.ledger.to_dicts(),
        "reasons": REASONS,
        "balance": report.balance,
        "cache_usage": report.usage,
        "bad_usage_lines": report.bad_usage_lines,
        "retention": retention and {
            "recorded_s": retention.recorded_s, "margin_s": retention.margin_s, "reads": retention.reads,
            "expired": retention.expired, "late": retention.late, "curve": retention.points.to_dicts(),
            "limits": word_limits(retention),
        },
    }  # fmt: skip


def render_leases(report: LeaseReport) -> RenderableType:
    """Render one run."""
    parts = [render_ledger(report), render_outcomes(report.ledger), render_balance(report), render_usage(report)]
    if report.retention:
        parts.append(render_retention(report.retention))
    return Group(*(piece for part in parts for piece in (part, Text())))


def render_ledger(report: LeaseReport) -> RenderableType:
    """Render block-seconds by engine and reason, used and wasted."""
    table = make_table()
    for name in ("engine", "reason"):
        table.add_column(name)
    for name in ("leases", "blocks", "block-s", "used", "wasted", "open", "GB-s", "GB-s wasted"):
        table.add_column(name, justify="right")
    for row in report.ledger.iter_rows(named=True):
        running = row["reason"] == RUNNING
        fates = ["", "", ""] if running else [_figure(row[f"{name}_block_s"]) for name in ("used", "wasted", "open")]
        table.add_row(
            row["engine"], row["reason"], f"{row['leases']:,}", f"{row['blocks']:,}", _figure(row["block_s"]), *fates,
            _figure(row["gb_s"], 3), "" if running else _figure(row["wasted_gb_s"], 3), style="dim" if running else "",
        )  # fmt: skip
    unclear = float(report.ledger["unclear_block_s"].sum())
    notes = [
        "used: read, sent or received; wasted: expired, aborted, or declined by the next turn; open: still held when"
        " the engine ended"
    ]
    notes += [f"{unclear:.1f} block-s of leases whose end was seen and its cause not"] if unclear else []
    return Group(add_title(f"Lease ledger of {report.run.name}", table), *(Text(note, "dim") for note in notes))


def render_outcomes(ledger: pl.DataFrame) -> RenderableType:
    """Render how the leases ended."""
    names = [name for name in ledger.columns if name.startswith("outcome_")]
    table = make_table()
    for name in ("engine", "reason"):
        table.add_column(name)
    for name in names:
        table.add_column(name.removeprefix("outcome_"), justify="right")
    for name in ("age at read p50 s", "p99 s", "heartbeats", "read after expiry"):
        table.add_column(name, justify="right")
    for row in ledger.filter(pl.col("reason") != RUNNING).iter_rows(named=True):
        table.add_row(
            row["engine"], row["reason"], *(f"{row[name]:,}" if row[name] else "" for name in names),
            _figure(row["age_p50_s"], 3), _figure(row["age_p99_s"], 3),
            f"{row['heartbeats']:,}" if row["heartbeats"] else "",
            Text(str(row["late_reads"]), "bold red") if row["late_reads"] else "",
        )  # fmt: skip
    return add_title("How they ended (leases)", table)


def render_balance(report: LeaseReport) -> RenderableType:
    """Render whether every block that was taken came back, engine by engine."""
    lines = []
    for entry in report.balance:
        verdict = "balanced" if entry["balanced"] else "NOT balanced"
        lines.append(f"{entry['engine']}: {entry['taken']:,} blocks taken, {entry['released']:,} released: {verdict}")
        lines += [
            f"  open at the end: {held['key'] or held['id']}, {held['blocks']} blocks, {held['reason']},"
            f" held {held['held_s']:.1f} s"
            for held in entry["held"][:10]
        ]
        if entry["unheard"]:
            lines.append(
                f"  {entry['unheard']} of them were never told of (engine killed or spans lost): worked out from their"
                " requests, held until the engine was last heard"
            )
    return Group(Text("Balance (warm-ups included)", "bold italic"), Text("\n".join(lines)))


def render_usage(report: LeaseReport) -> RenderableType:
    """Render the ledger beside vLLM's own cache usage."""
    if not report.usage:
        return Text("vLLM's own cache usage: no cache_usage.jsonl in the run directory, nothing to compare with", "dim")
    table = make_table()
    table.add_column("engine")
    for name in ("changes", "over s", "vLLM", "ledger", "difference"):
        table.add_column(name, justify="right")
    lines = []
    for entry in report.usage:
        apart = "-" if entry["difference"] is None else f"{entry['difference']:+.1%}"
        table.add_row(
            entry["engine"], f"{entry['changes']:,}", f"{entry['window_s']:.1f}", f"{entry['measured_block_s']:,.1f}",
            f"{entry['ledger_block_s']:,.1f}", apart,
        )  # fmt: skip
        if entry["without_block_s"]:
            lines.append(f"{entry['engine']}: {entry['without_block_s']} requests told no block-seconds")
    if report.bad_usage_lines:
        lines.append(f"{report.bad_usage_lines} lines of cache_usage.jsonl skipped: damaged, or of another schema")
    title = "Block-seconds held, running requests included, beside what vLLM's block pool says (lab runs)"
    return Group(add_title(title, table), *(Text(line, "dim") for line in lines))


def render_retention(retention: Retention) -> RenderableType:
    """Render the retention curve."""
    table = make_table()
    for name, side in (("retention s", "right"), ("block-s kept", "right"), ("", "left"), ("GB-s", "right"),
                       ("fetches lost", "right"), ("won", "right"), ("", "left")):  # fmt: skip
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    reach = float(retention.points["block_s"].max()) or 1.0  # type: ignore[arg-type]
    for row in retention.points.iter_rows(named=True):
        mark = "recorded" if row["is_recorded"] else "" if row["is_known"] else "at most"
        table.add_row(
            f"{row['retention_s']:,.2f}", f"{row['block_s']:,.1f}", "█" * round(row["block_s"] / reach * BAR),
            _figure(row["gb_s"], 3), str(row["lost"]), str(row["won"] or ""), mark,
        )  # fmt: skip
    title = (
        f"Retention curve: {retention.reads} kept turns were read, {retention.expired} expired,"
        f" {retention.late} next turns are known to have come too late"
    )
    return Group(add_title(title, table), *(Text(line, "dim") for line in word_limits(retention)))


def word_limits(retention: Retention) -> list[str]:
    """Word what the curve cannot know."""
    lines = []
    if retention.recorded_s is not None:
        lines.append(
            f"Beyond the recorded {retention.recorded_s:g} s: turns that came too late are known where the prefill"
            " engine was asked; blocks that nobody asked for are taken as held to the end, the most it could cost."
        )
    if retention.margin_s:
        lines.append(
            f"A fetch needs {retention.margin_s:g} s more than its age, as vLLM declines reads that near expiry."
        )
    return lines


def _figure(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"

"""Decisions: what was decided about fetching or computing again, and why."""

from __future__ import annotations

import polars as pl

from ...source import Session
from ..model import Report, Section, Table

ORDER = 65


def load(session: Session) -> pl.DataFrame:
    """Load the decisions of a run: rows of sql/evidence.sql."""
    return session.query("evidence").filter(pl.col("name") == "decision")


def build(report: Report) -> Section | None:
    """Build the section; None when no decision was recorded."""
    rows = []
    for run in report.runs:
        frame = run.loaded.get("decisions")
        if frame is None or frame.is_empty():
            continue
        grouped = frame.group_by("engine", "outcome", "reason").agg(
            pl.len(), past=pl.col("seconds_past_expiry").median()
        )
        rows += [
            [run.name, row["engine"], row["outcome"] or "-", row["reason"] or "-", f"{row['len']:,}",
             "-" if row["past"] is None else f"{row['past']:.1f}"]
            for row in grouped.sort("len", descending=True).iter_rows(named=True)
        ]  # fmt: skip
    if not rows:
        return None
    head = ("run", "engine", "decision", "reason", "requests", "s past expiry p50")
    return Section(
        "Decisions", "Fetch the KV of earlier turns or compute it again.", [Table(head, rows, text_columns=4)]
    )

"""What a reader must know beside the figures: assumptions, missing halves, skipped data."""

from __future__ import annotations

from typing import Any

import polars as pl

from ..breakdown import Breakdown


def list_notes(breakdown: Breakdown) -> list[str]:
    """List the notes of one run, one line each."""
    made_up = ["SYNTHETIC: made from stated parameters (manifest.json); nothing here was measured."]
    labels = made_up if breakdown.run.manifest.get("synthetic") else []
    told = (_note_sources, _note_missing, _note_quality, _note_data)
    return labels + [note for tell in told for note in tell(breakdown)]


def _note_sources(breakdown: Breakdown) -> list[str]:
    sources = dict(breakdown.budgets.group_by("ttft_source").len().iter_rows())
    texts = {
        "router": "from the client's send stamp (else the router's arrival) to the first byte written to the client",
        "engine": "from the earliest arrival on an engine to D's first token, without router and delivery",
    }
    return [
        f"TTFT ({source}, {sources[source]} requests): {text}." for source, text in texts.items() if source in sources
    ]


def _note_missing(breakdown: Breakdown) -> list[str]:
    texts = {
        "prefill": "No spans of the prefill engine for {} requests: its share of the time is in the residual.",
        "decode": "No spans of the decode engine for {} requests: its share of the time is in the residual.",
        "transfer": "No post or wire for {} requests that waited for remote KV: their hand-over is in the residual.",
    }
    return [texts[part].format(count) for part, count in breakdown.summary["missing"].items()]


def _note_quality(breakdown: Breakdown) -> list[str]:
    notes = []
    budgets = breakdown.budgets
    if any(summary["uncertainty_ms"].get("max", 0) > 0 for summary in breakdown.summary["modes"].values()):
        worst = max(summary["uncertainty_ms"]["p50"] for summary in breakdown.summary["modes"].values())
        notes.append(
            f"The landing of a transfer is known between two polls only (median uncertainty {worst:.1f} ms);"
            " a segment marked ~ is smaller than that: unresolved."
        )
    disorder = budgets.filter(pl.col("disorder") > 0)
    if disorder.height:
        worst_ms = disorder["disorder"].to_numpy().max() / 1e6
        notes.append(
            f"{disorder.height} requests had milestones out of order, by {worst_ms:.3f} ms at most: repaired forward."
        )
    notes += note_clocks(breakdown.summary.get("clocks"))
    if breakdown.summary["siblings"]:
        notes.append(
            f"{breakdown.summary['siblings']} sibling decode requests (n > 1, or a leg tried again) are not shown."
        )
    return notes


def note_clocks(clocks: dict[str, Any] | None) -> list[str]:
    """Say what was assumed of the clocks of several hosts, and what they leave unknown."""
    if clocks is None:
        return []
    width = clocks["width_ms"]
    notes = [
        f"{len(clocks['clocks'])} clocks, put on that of {clocks['reference']} by {clocks['messages_used']:,}"
        " messages (received after sent, constant rate within a window, 200 ppm apart at most)"
        + (f": two clocks are known within {width['p50']:.2f} ms (median width)." if width else ".")
        + " A segment between two of them carries that; see kvlens clocks."
    ]
    texts = {
        "unrelated_pairs": "pairs of clocks are not related by messages both ways: segments between them are unknown",
        "requests_without_ttft": "requests have no TTFT: it would be measured between unrelated clocks",
        "impossible_orders": "messages arrived before they were sent, whatever the clocks: not used",
        "jumps": "jumps of a clock against another: bounds there are those of both sides",
        "contradictions": "spans of time in which pairs of clocks contradict each other: bounds were widened",
    }
    return notes + [f"{clocks[name]} {text}." for name, text in texts.items() if clocks[name]]


def _note_data(breakdown: Breakdown) -> list[str]:
    data = breakdown.summary["data"]
    texts = {
        "bad_lines": "lines cut off or damaged: skipped",
        "bad_client_lines": "lines of client.jsonl damaged: skipped",
        "foreign_spans": "spans not from kvlens: ignored",
        "impossible_spans": "spans with impossible clocks: skipped",
        "failures": "failure events recorded",
    }
    found = [f"{data[name]} {text}" for name, text in texts.items() if data[name]]
    return [f"Data: {'; '.join(found)}."] if found else []

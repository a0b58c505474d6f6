"""Terminal tables of `kvlens tpot`; times in ms."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..interference import NOBODY
from ..tpot import CONNECTOR_PARTS, PARTS
from ..tpot_report import TpotReport
from .tpot_json import NS_PER_MS, summarize

MEANING = {
    "execution": "the step without the connector",
    "connector": "submit, poll, save and metadata on the engine's threads",
    "gap": "between two steps: engine loop, input, scheduling",
    "preemption": "steps that ran without the request",
}


def render_tpot(report: TpotReport, top: int) -> RenderableType:
    """Render one run."""
    parts: list[RenderableType] = [render_budget(report), render_batches(report.batches), render_gaps(report)]
    if top and not report.culprits.is_empty():
        parts.append(render_culprits(report.culprits, top))
    if not report.submissions.is_empty():
        parts.append(render_submissions(report.submissions))
    if not report.threads.is_empty():
        parts.append(render_threads(report.threads))
    return Group(*_spaced(parts), *(Text(note) for note in list_notes(report)))


def make_table() -> Table:
    """Make a table in the house's style."""
    return Table(header_style="bold", pad_edge=False)


def _spaced(parts: list[RenderableType]) -> list[RenderableType]:
    return [entry for part in parts for entry in (part, Text())]


def render_budget(report: TpotReport) -> RenderableType:
    """Render TPOT and its parts over all requests."""
    rows, summary = report.requests, summarize(report)
    title, table = f"TPOT budget: {rows.height} requests (ms per token)", make_table()
    for name in ("part", "p50", "p90", "p99", "mean", "share", "meaning"):
        table.add_column(name, justify="left" if name in ("part", "meaning") else "right")
    whole = float((rows["tpot_ns"] * rows["intervals"]).sum()) or 1.0
    for name in PARTS:
        share = float((rows[f"{name}_ns"] * rows["intervals"]).sum()) / whole
        table.add_row(name, *_figures(summary["parts"][name]), f"{share:.1%}", MEANING[name])
        for part in CONNECTOR_PARTS if name == "connector" else ():
            table.add_row(f"  {part}", *_figures(summary["parts"][part]), "", "", style="dim")
    table.add_section()
    table.add_row(
        "TPOT", *_figures(summary["tpot_ms"]), "100 %", "first token to last token on the engine", style="bold"
    )
    if summary["client_tpot_ms"]["count"]:
        table.add_row("client", *_figures(summary["client_tpot_ms"]), "", "first token to last token at the client")
        table.add_row("|residual|", *_figures(summary["abs_residual_ms"]), "", "client less engine")
    return Group(Text(title, "bold italic"), table)


def render_batches(batches: pl.DataFrame) -> RenderableType:
    """Render the parts of a step by the number of requests that decoded in it."""
    title, table = "By requests decoding in the step (ms per step)", make_table()
    for name in (
        "engine",
        "decoding",
        "steps",
        "tokens",
        "execution",
        "connector",
        "submit",
        "poll",
        "gap",
        "with a prompt",
    ):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for row in batches.iter_rows(named=True):
        figures = (
            f"{row[f'{name}_ns'] / NS_PER_MS:.3f}" for name in ("execution", "connector", "submit", "poll", "gap")
        )
        table.add_row(
            row["engine"], row["bucket"], str(row["steps"]), str(row["tokens"]), *figures, str(row["with_prompt"])
        )
    return Group(Text(title, "bold italic"), table)


def render_gaps(report: TpotReport) -> RenderableType:
    """Render the inter-token gaps above the bound by cause."""
    title, table = f"Inter-token gaps above {report.bound_ns / NS_PER_MS:.1f} ms", make_table()
    for name in ("engine", "cause", "gaps", "share", "excess ms"):
        table.add_column(name, justify="left" if name in ("engine", "cause") else "right")
    totals = dict(report.gaps.group_by("engine").agg(pl.col("gaps").sum()).iter_rows())
    for row in report.gaps.filter(pl.col("cause") != "").iter_rows(named=True):
        share = row["gaps"] / totals[row["engine"]]
        table.add_row(
            row["engine"], row["cause"], str(row["gaps"]), f"{share:.2%}", f"{row['excess_ns'] / NS_PER_MS:.1f}"
        )
    return Group(Text(title, "bold italic"), table)


def render_culprits(culprits: pl.DataFrame, top: int) -> RenderableType:
    """Render the transfers that delayed others most."""
    title, table = (
        f"Transfers that delayed others most ({culprits.height} in all; ms summed over the delayed requests)",
        make_table(),
    )
    for name in ("request", "engine", "direction", "steps", "victims", "its own time", "delay", "by post", "by poll"):
        table.add_column(
            name, justify="left" if name in ("request", "engine", "direction") else "right", overflow="fold"
        )
    for row in culprits.filter(pl.col("culprit") != NOBODY).head(top).iter_rows(named=True):
        figures = (f"{row[name] / NS_PER_MS:.2f}" for name in ("cost_ns", "delay_ns", "post_delay_ns", "poll_delay_ns"))
        table.add_row(
            row["culprit"], row["engine"], row["direction"], str(row["steps"]), str(row["victims"]), *figures
        )  # fmt: skip
    return Group(Text(title, "bold italic"), table)


def render_submissions(submissions: pl.DataFrame) -> RenderableType:
    """Render where transfers were posted."""
    title, table = "Where transfers were posted", make_table()
    for name in ("engine", "thread", "place", "direction", "posts", "post ms", "ms per post", "descriptors"):
        table.add_column(name, justify="left" if name in ("engine", "thread", "place", "direction") else "right")
    for row in submissions.iter_rows(named=True):
        took = row["post_ns"] / NS_PER_MS
        table.add_row(
            row["engine"], row["thread"], row["place"], row["direction"], str(row["posts"]), f"{took:.1f}",
            f"{took / row['posts']:.2f}", f"{row['descriptors']:.0f}",
        )  # fmt: skip
    return Group(Text(title, "bold italic"), table)


def render_threads(threads: pl.DataFrame, least_share: float = 0.002) -> RenderableType:
    """Render CPU time by thread; threads below a small share of the sampled time are left out."""
    title, table = "CPU time by thread (share of one core; waiting: ready to run, but without a core)", make_table()
    for name in ("engine", "process", "kind", "thread", "CPU s", "CPU", "waiting"):
        table.add_column(name, justify="right" if name in ("CPU s", "CPU", "waiting") else "left")
    span = dict(threads.group_by("engine", "process", "rank").agg(pl.col("sampled_ns").max()).select(
        pl.concat_str("engine", "process", "rank", separator="/"), "sampled_ns").iter_rows())  # fmt: skip
    for row in threads.iter_rows(named=True):
        whole = span[f"{row['engine']}/{row['process']}/{row['rank']}"] or 1
        share, wait = row["cpu_ns"] / whole, None if row["wait_ns"] is None else row["wait_ns"] / whole
        always = row["kind"] in ("engine", "push_writer", "nixl", "kvlens", "exporter")
        if share < least_share and not always:
            continue
        process = row["process"] if not row["rank"] else f"{row['process']} {row['rank']}"
        table.add_row(
            row["engine"], process, row["kind"], row["name"], f"{row['cpu_ns'] / 1e9:.2f}", f"{share:.1%}",
            "-" if wait is None else f"{wait:.1%}",
        )  # fmt: skip
    return Group(Text(title, "bold italic"), table)


def list_notes(report: TpotReport) -> list[str]:
    """List what a reader must know beside the figures, one line each."""
    summary, notes = summarize(report), []
    if summary["coalesced_tokens"]:
        notes.append(
            f"{summary['coalesced_tokens']} of {summary['client_tokens']} tokens reached the client in one chunk with "
            "the token before: single gaps at the client are not the engine's, their sum is."
        )
    if summary["without_worker"]:
        notes.append(
            f"{summary['without_worker']} of {summary['steps']} steps have no worker half: "
            "their connector time is in execution."
        )
    for row in report.writer.iter_rows(named=True):
        notes.append(
            f"Push writer of {row['engine']}, as sampled: at most {row['max_queue']} items queued, "
            f"{row['max_unmatched']} prompts and {row['max_registrations']} registrations unmatched, oldest "
            f"{row['max_oldest_ns'] / NS_PER_MS:.0f} ms, longest without a look for notifications "
            f"{row['max_heartbeat_ns'] / NS_PER_MS:.0f} ms."
        )
    return notes


def _figures(entry: dict[str, Any]) -> list[str]:
    return [f"{entry[name]:.3f}" if name in entry else "-" for name in ("p50", "p90", "p99", "mean")]

"""What `kvlens efa` prints: tables for the terminal, and the JSON document; times in ms.

Schema history of the document: 1, first release.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..efa import TROUBLE
from ..efa_report import EfaReport
from .tpot import make_table

SCHEMA = 1
NS_PER_MS = 1e6
SHORT = dict(zip(TROUBLE, ("retrans", "timeouts", "unresponsive", "impaired"), strict=True))
RAILS_SHOWN = 4


def render_json(report: EfaReport) -> str:
    """Render a report as its JSON document."""
    return json.dumps(make_document(report), ensure_ascii=False, allow_nan=False)


def make_document(report: EfaReport) -> dict[str, Any]:
    """Make the document: samples, ports, classes, all transfers, notes."""
    brackets = report.transfers.with_columns(
        window_ms=pl.col("duration") / NS_PER_MS, bracket_ms=(pl.col("to_ns") - pl.col("from_ns")) / NS_PER_MS
    ).drop("duration", "from_ns", "to_ns")
    return {
        "schema": SCHEMA,
        "run": {"name": report.run.name, **report.run.manifest},
        "sampling": {
            "interval_ms": to_ms(report.interval_ns),
            "median_window_ms": to_ms(report.window_ns),
            "median_bracket_ms": to_ms(report.bracket_ns),
            "byte_counters": report.counters.sort("host", "direction").to_dicts(),
        },
        "ports": report.ports.to_dicts(),
        "classes": report.classes.with_columns(p50_ms=pl.col("p50") / NS_PER_MS, p95_ms=pl.col("p95") / NS_PER_MS)
        .drop("p50", "p95")
        .to_dicts(),
        "transfers": brackets.rename({"begin": "begin_unix_ns", "finish": "finish_unix_ns"}).to_dicts(),
        "notes": list(report.notes),
    }


def to_ms(ns: float | None) -> float | None:
    """Return milliseconds of nanoseconds."""
    return None if ns is None else ns / NS_PER_MS


def render_efa(report: EfaReport, top: int) -> RenderableType:
    """Render one run: its devices, its classes of transfers, the flagged ones, and the notes."""
    parts: list[RenderableType] = [Text(describe_sampling(report), "bold")]
    for part in (render_ports(report.ports), render_classes(report.classes), render_flagged(report.transfers, top)):
        parts += [Text(), part]
    return Group(*parts, Text(), *(Text(note) for note in report.notes))


def describe_sampling(report: EfaReport) -> str:
    """Say how fine the samples are against the transfers, since that bounds all that follows."""
    if report.interval_ns is None or report.bracket_ns is None:
        return f"{report.transfers.height} transfers; the samples enclose none of them"
    times = report.bracket_ns / report.window_ns if report.window_ns else 0.0
    finer = f", {times:.0f} times the transfer" if times >= 2 else ""
    return (
        f"{report.transfers.height} transfers, median {report.window_ns / NS_PER_MS:.1f} ms; a sample every "
        f"{report.interval_ns / NS_PER_MS:.0f} ms, so movements are those of {report.bracket_ns / NS_PER_MS:.0f} ms"
        f"{finer}"
    )


def start_table(texts: tuple[str, ...], numbers: tuple[str, ...], last: tuple[str, ...] = ()) -> Table:
    """Start a table with text columns, number columns, and text columns at the end."""
    table = make_table()
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    for name in last:
        table.add_column(name)
    return table


def render_ports(ports: pl.DataFrame) -> RenderableType:
    """Render what each rail moved in the whole stream."""
    title = Text("Rails over the whole stream", "bold italic")
    table = start_table(("host", "device", "port"), ("sent", "received", "retrans bytes", *SHORT.values()))
    for row in ports.iter_rows(named=True):
        traffic = (format_bytes(row[name]) for name in ("tx_bytes", "rx_bytes", "retrans_bytes"))
        table.add_row(row["host"], row["device"], row["port"], *traffic, *(str(row[name]) for name in TROUBLE))
    return Group(title, table)


def render_classes(classes: pl.DataFrame) -> RenderableType:
    """Render how often trouble coincided with the tail of each class, and with the rest of it."""
    title = Text("Network trouble around transfers (any of the last four above), by direction and size", "bold italic")
    table = start_table(
        ("direction", "from"), ("transfers", "p50 ms", "p95 ms", "in the tail", "with trouble", "rest", "with trouble")
    )
    for row in classes.iter_rows(named=True):
        figures = (f"{row[name] / NS_PER_MS:.2f}" for name in ("p50", "p95"))
        tail = ("-", "-") if not row["judged"] else (str(row["tail"]), share(row["tail_trouble"], row["tail"]))
        size = "unknown" if row["size"] is None else format_bytes(2 ** row["size"])
        rest = (str(row["rest"]), share(row["rest_trouble"], row["rest"]))
        table.add_row(row["direction"], size, str(row["transfers"]), *figures, *tail, *rest)
    return Group(title, table)


def render_flagged(transfers: pl.DataFrame, top: int) -> RenderableType:
    """Render the flagged transfers, slowest first."""
    flagged = transfers.filter("flagged").sort("duration", descending=True)
    title = f"{flagged.height} transfers were slow or failed while the network of their host had trouble"
    if flagged.is_empty():
        return Text(title, "bold italic")
    names = ("MB", "window ms", "samples ms", "others", *SHORT.values())
    table = start_table(("request", "engine", "rank", "direction", "why"), names, ("bytes by rail",))
    for row in flagged.head(top).iter_rows(named=True):
        figures = (
            f"{row['bytes'] / 1e6:.1f}", f"{row['duration'] / NS_PER_MS:.2f}",
            f"{(row['to_ns'] - row['from_ns']) / NS_PER_MS:.0f}", str(row["others"]),
        )  # fmt: skip
        table.add_row(
            row["request_key"] or row["request_id"], row["engine"], row["rank"], row["direction"],
            "tail" if row["tail"] else row["outcome"], *figures, *(str(row[name]) for name in TROUBLE),
            format_rails(row["rails"]),
        )  # fmt: skip
    return Group(Text(title, "bold italic"), table)


def format_rails(rails: list[dict[str, Any]]) -> str:
    """Return "device 12.0 MB, ...", those that moved most first."""
    shown = [f"{rail['device']} {format_bytes(rail['bytes'])}" for rail in rails[:RAILS_SHOWN]]
    more = len(rails) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def share(part: int, whole: int) -> str:
    """Return "3 (12%)"."""
    return f"{part} ({part / whole:.0%})" if whole else "-"


def format_bytes(count: float) -> str:
    """Return bytes with the decimal prefix that fits."""
    for prefix in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.0f} B" if not prefix else f"{count:.1f} {prefix}B"
        count /= 1000
    return f"{count:.1f} TB"

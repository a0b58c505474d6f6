"""A run's EFA report: session -> transfers with what the devices counted around them; one plain value."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from .efa import BYTES, TROUBLE, choose_bytes, find_interval, join_transfers, summarize_classes, summarize_ports
from .efa_streams import Streams, find_sample_files, load_streams
from .errors import KvlensError
from .run import Run
from .source import Session

FAR_LESS = 0.5
"""Devices that moved less than this share of the spans' bytes did not carry them."""


@dataclass(frozen=True)
class EfaReport:
    """transfers: join_transfers. ports: summarize_ports. classes: summarize_classes. counters: choose_bytes.

    interval_ns: median time between two samples. window_ns, bracket_ns: medians of the transfers' windows and of the
    samples around them.
    """

    run: Run
    transfers: pl.DataFrame
    ports: pl.DataFrame
    classes: pl.DataFrame
    counters: pl.DataFrame
    interval_ns: float | None
    window_ns: float
    bracket_ns: float | None
    notes: tuple[str, ...]


def report_efa(session: Session) -> EfaReport:
    """Report a run. Raises KvlensError when it has no samples or no transfers."""
    wires = session.query("wires")
    if wires.is_empty():
        raise KvlensError(
            f"no transfers (wire spans) in {session.run.name}",
            "collect the span files of the side that posts: the prefill engine in push, the decode engine in pull",
        )
    streams = load_streams(find_sample_files(session.run.files), sorted(wires["host"].unique()))
    transfers = join_transfers(wires, streams.totals)
    bracketed = transfers.select((pl.col("to_ns") - pl.col("from_ns")).drop_nulls())["to_ns"]
    return EfaReport(
        run=session.run,
        transfers=transfers,
        ports=summarize_ports(streams.totals),
        classes=summarize_classes(transfers),
        counters=choose_bytes(streams.totals).join(
            wires.select("host", "direction").unique(), on=["host", "direction"]
        ),
        interval_ns=find_interval(streams.totals),
        window_ns=float(transfers["duration"].median() or 0),  # type: ignore[arg-type]
        bracket_ns=None if bracketed.is_empty() else float(bracketed.median()),  # type: ignore[arg-type]
        notes=tuple(list_notes(transfers, streams)),
    )


def list_notes(transfers: pl.DataFrame, streams: Streams) -> list[str]:
    """List what a reader must know beside the figures, one sentence or two each."""
    return [*note_limits(transfers), *note_bytes(transfers, streams.totals), *note_data(transfers, streams)]


def note_limits(transfers: pl.DataFrame) -> list[str]:
    """Say what the join cannot know."""
    notes = [
        "A counter's movement is that between the samples around a transfer's window: it may have happened before or "
        "after the transfer itself. Coinciding is not causing; compare with the rest of the class."
    ]
    shared = transfers.filter(pl.col("others") > 0).height
    if shared:
        notes.append(
            f"{shared} transfers share their samples with other transfers of this host: bytes and events of concurrent "
            "transfers cannot be told apart, nor those of other programs. Do not sum them over transfers."
        )
    small = transfers.filter(pl.col("tail").is_null() & pl.col("outcome").is_in(["ok", ""])).height
    if small:
        notes.append(f"{small} transfers are of a direction and size with under 20 transfers: no tail is told there.")
    return notes


def note_bytes(transfers: pl.DataFrame, totals: pl.DataFrame) -> list[str]:
    """Say which counter stood in for the one that did not move, and when the devices carried nothing of it."""
    notes = []
    claimed = transfers.group_by("host", "direction").agg(pl.col("bytes").sum()).sort("host", "direction")
    for row in claimed.join(choose_bytes(totals), on=["host", "direction"]).iter_rows(named=True):
        exact, general = BYTES[row["direction"]]
        moved = int(summarize_ports(totals).filter(pl.col("host") == row["host"])[row["counter"]].sum())
        if row["counter"] == general and moved:
            notes.append(f"{exact} stayed at zero on {row['host']}: {general} stands in, which counts all traffic.")
        if moved < FAR_LESS * row["bytes"]:
            notes.append(
                f"The devices of {row['host']} moved {moved} bytes by {row['counter']}, its transfers {row['bytes']}: "
                "they went another way, or the samples do not cover them (kvlens doctor: tcp-fallback)."
            )
    return notes


def note_data(transfers: pl.DataFrame, streams: Streams) -> list[str]:
    """Say what is missing in the samples."""
    notes = []
    unsampled = transfers.filter(pl.col("from_ns").is_null()).height
    if unsampled:
        notes.append(f"{unsampled} of {transfers.height} transfers lie outside the samples of their host: not judged.")
    absent = [name for name in TROUBLE if name not in streams.counted]
    if absent:
        notes.append(f"The driver does not count {', '.join(absent)}: nothing is known of them.")
    resets = int(summarize_ports(streams.totals)["resets"].sum())
    if resets:
        notes.append(f"{resets} times counters of a port began anew (driver reload): movements there are lower bounds.")
    if streams.skipped:
        notes.append(f"{streams.skipped} lines of the sample streams were cut off or damaged: skipped.")
    notes += [f"Stream {name!r} is taken for that of the run's one host." for name in streams.assumed]
    return notes

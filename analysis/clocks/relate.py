"""Messages -> Relation: every clock on a rough common axis, every pair fitted, all bounds closed over third clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import polars as pl

from .pieces import fit_pieces
from .relation import Pair, Places, Relation, close_bounds
from .strip import TOLERANCE_NS, Floats, Points

WINDOW_NS = 120e9
"""A clock's rate is called constant this long: temperature and time daemons move it by less than 0.1 ppm meanwhile."""
MAX_WINDOWS = 16
"""A longer run has longer windows instead of more."""
BINS = 128
"""Each window is cut into this many bins; of a bin the TIGHTEST messages each way are fitted, slower ones say less."""
TIGHTEST = 3
SMALL = 2000
"""Fewer messages than this are cut nothing off at the ends: one in a thousand would be a large part of the run."""
MARGIN_NS = 10e9
"""Bounds are stated for this long before the first and after the last message."""


def relate_clocks(messages: pl.DataFrame, boots: Iterable[str | None], reference: str) -> Relation:
    """Relate the clocks of all boots by the messages between them (rows of messages.list_messages)."""
    names = tuple(
        sorted(
            {reference, *(boot for boot in boots if boot), *messages["sender"].unique(), *messages["receiver"].unique()}
        )
    )
    place_of = {name: place for place, name in enumerate(names)}
    clocks = pl.Enum(names)
    placed = messages.select(
        "sent", "received", a=pl.col("sender").cast(clocks).to_physical().cast(pl.Int64),
        b=pl.col("receiver").cast(clocks).to_physical().cast(pl.Int64),
    )  # fmt: skip
    zero = find_zeros(placed, len(names), place_of[reference])
    on_axis = put_on_axis(placed, zero)
    edges = cut_windows(on_axis)
    ways = on_axis.group_by("first", "second", "is_upper").len()
    counts = {(first, second, way): count for first, second, way, count in ways.iter_rows()}
    pairs = tuple(_fit_pair(rows, edges, counts) for rows in thin(on_axis, edges).partition_by("first", "second"))
    starts, ends, high, via, contradictions = close_bounds(pairs, len(names))
    relation = Relation(names, zero, place_of[reference], starts, ends, high, via, pairs, contradictions, place_of)
    return replace(relation, pairs=_count_impossible(relation, on_axis))


def find_zeros(placed: pl.DataFrame, count: int, reference: int) -> Places:
    """Find the Unix ns that stand for the same rough moment on every clock.

    The clocks are reached from the reference over the pairs with the most messages, each at the middle of its quickest
    messages both ways (their 5 % quantiles: a few impossible ones don't matter). Only roughness is needed: the bounds
    are exact whatever it is.
    """
    start = int(placed["sent"].min() or 0) if placed.height else 0  # type: ignore[arg-type]
    zero = np.full(count, start, dtype=np.int64)
    quick = placed.group_by("a", "b").agg(
        least=(pl.col("received") - pl.col("sent")).quantile(0.05, "lower"), messages=pl.len()
    )
    least = {(a, b): (value, messages) for a, b, value, messages in quick.iter_rows()}
    reached, waiting = {reference}, set(range(count)) - {reference}
    while waiting:
        ways = [
            (least.get((a, b), (0, 0))[1] + least.get((b, a), (0, 0))[1], a, b)
            for a, b in {(a, b) for pair in least for a, b in (pair, pair[::-1])}
            if a in reached and b in waiting
        ]
        if not ways:
            break
        _, a, b = max(ways)
        there, back = least.get((a, b)), least.get((b, a))
        ends = ([there[0]] if there else []) + ([-back[0]] if back else [])
        zero[b] = zero[a] + int(sum(ends)) // len(ends)
        reached.add(b)
        waiting.discard(b)
    return zero


def put_on_axis(placed: pl.DataFrame, zero: Places) -> pl.DataFrame:
    """Add first and second (the pair), t, value and is_upper of each message (see strip.Points), ns on the axis."""
    zeros = pl.Series(zero)
    sent = pl.col("sent") - pl.col("a").replace_strict(dict(enumerate(zeros)), return_dtype=pl.Int64)
    received = pl.col("received") - pl.col("b").replace_strict(dict(enumerate(zeros)), return_dtype=pl.Int64)
    is_upper = pl.col("a") < pl.col("b")
    return placed.with_columns(
        first=pl.min_horizontal("a", "b"), second=pl.max_horizontal("a", "b"), is_upper=is_upper,
        t=pl.when(is_upper).then(sent).otherwise(received).cast(pl.Float64),
        delay=(received - sent).cast(pl.Float64),
    ).with_columns(value=pl.when("is_upper").then("delay").otherwise(-pl.col("delay")))  # fmt: skip


def cut_windows(on_axis: pl.DataFrame) -> list[float]:
    """Cut the time of all messages into windows: their edges, ns on the axis. A stray stamp does not stretch them."""
    if on_axis.is_empty():
        return [-1.0, 0.0, 1.0, 2.0]
    low, high = (float(on_axis["t"].quantile(q, "nearest") or 0.0) for q in (0.001, 0.999))
    if on_axis.height < SMALL:
        low, high = (float(on_axis["t"].min() or 0.0), float(on_axis["t"].max() or 0.0))  # type: ignore[arg-type]
    reach = (high - low) * 0.01 + MARGIN_NS
    count = int(np.clip(np.ceil((high - low) / WINDOW_NS), 1, MAX_WINDOWS))
    return [low - reach, *np.linspace(low, high + 1.0, count + 1).tolist(), high + reach]


def thin(on_axis: pl.DataFrame, edges: list[float]) -> pl.DataFrame:
    """Keep the TIGHTEST messages of every pair, direction and bin, in time order."""
    inner = edges[1:-1]
    width = (inner[-1] - inner[0]) / (max(len(inner) - 1, 1) * BINS) or 1.0
    group = ("first", "second", "is_upper", "bin")
    return (
        on_axis.select(
            "first", "second", "is_upper", "t", "value", "delay", bin=((pl.col("t") - inner[0]) / width).floor()
        )
        .sort("delay")
        .group_by(group, maintain_order=True)
        .head(TIGHTEST)
        .sort("t")
    )


def _fit_pair(rows: pl.DataFrame, edges: list[float], counts: dict[tuple[int, int, bool], int]) -> Pair:
    first, second = rows.row(0, named=True)["first"], rows.row(0, named=True)["second"]
    points = Points(rows["t"].to_numpy(), rows["value"].to_numpy(), rows["is_upper"].to_numpy())
    there, back = (counts.get((first, second, way), 0) for way in (True, False))
    return Pair(first, second, fit_pieces(points, edges), (there, back))


def _count_impossible(relation: Relation, on_axis: pl.DataFrame) -> tuple[Pair, ...]:
    """Count the messages of each pair that the published bounds call impossible."""
    low, _ = relation.bound(on_axis["a"].to_numpy(), on_axis["b"].to_numpy(), on_axis["t"].to_numpy())
    delay: Floats = on_axis["delay"].to_numpy()
    bad = on_axis.select("first", "second").with_columns(bad=pl.Series(low > delay + 2 * TOLERANCE_NS))
    counts = {(a, b): count for a, b, count in bad.group_by("first", "second").agg(pl.col("bad").sum()).iter_rows()}
    return tuple(replace(pair, impossible=counts[pair.first, pair.second]) for pair in relation.pairs)

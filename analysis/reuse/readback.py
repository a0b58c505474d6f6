"""The readback of an earlier turn's KV inside the TTFT budget: from blocks allocated to told, and its parts."""

from __future__ import annotations

import polars as pl

from ..handshakes import measure_handshakes
from ..landing import ROUTE, estimate_landing
from ..segments import READBACK_PARTS, UNRESOLVED

NAME_IN_LANDING = {
    "p_engine": "x_engine", "rb_peer": "x_peer", "p_post_start": "post_start", "p_post_end": "post_end",
    "p_landed_after": "landed_after", "p_landed_done": "landed_done", "rb_bytes": "bytes",
}  # fmt: skip
SCHEMA = {
    "p_engine": pl.String, "p_id": pl.String, "p_alloc": pl.Int64, "p_told": pl.Int64, "p_post_start": pl.Int64,
    "p_post_end": pl.Int64, "p_landed": pl.Int64, "rb_outcome": pl.String, "rb_tokens": pl.Int64,
    "rb_blocks": pl.Int64, "rb_ranks": pl.Int64, "rb_rank": pl.String, "rb_peer": pl.String, "rb_bytes": pl.Int64,
    "rb_descriptors": pl.Int64, "rb_uncertainty_ns": pl.Int64,
}  # fmt: skip


def join_readbacks(requests: pl.DataFrame, readbacks: pl.DataFrame) -> pl.DataFrame:
    """Add what the prefill engine read back for each request; NULL where it read nothing.

    requests: rows with p_engine and p_id. readbacks: rows of sql/readbacks.sql. Adds the columns of SCHEMA.
    """
    placed = place_landing(readbacks)
    return requests.join(placed, on=["p_engine", "p_id"], how="left", maintain_order="left")


def place_landing(readbacks: pl.DataFrame) -> pl.DataFrame:
    """Add p_landed and rb_uncertainty_ns, estimated between two polls as a hand-over's landing is (landing.py)."""
    if readbacks.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    renamed = readbacks.rename(NAME_IN_LANDING).with_columns(
        x_direction=pl.lit("READ"), notified_at=pl.lit(None, pl.Int64)
    )
    estimated = estimate_landing(renamed).rename({ours: name for name, ours in NAME_IN_LANDING.items()})
    assert set(ROUTE) <= {*renamed.columns}
    return estimated.select(
        pl.coalesce(source).cast(kind).alias(name)
        for name, kind in SCHEMA.items()
        for source in [{"p_landed": "landed", "rb_uncertainty_ns": "uncertainty_ns"}.get(name, name)]
    )


def charge_readback(frame: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    """Take the readback out of the prefill queue: what is left of the queue is before it and after it.

    frame: a walked chain (at_<milestone>, seg_<segment>) with the columns of SCHEMA. Adds seg_readback, its parts
    rbk_<part> (ns; they sum to it, rbk_unresolved is what no worker span tells apart), at_p_alloc and at_p_told. Where
    a read was posted and the scheduler's two ends of it are unknown, the queue can't be told apart from it: both stay
    in the residual. A readback that failed the request, which was then sent again, took from that attempt's arrival to
    the next one's: at_tried, all of it unresolved.
    """
    if "p_alloc" not in frame.columns:
        return frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in columns())
    low = pl.max_horizontal("ttft_start", "at_r_prefill_start", "at_p_start")
    high = pl.coalesce("at_p_sched", "at_p_end", "at_d_start", "ttft_end")
    known = pl.col("p_alloc").is_not_null() & pl.col("p_told").is_not_null()
    begin = pl.when(known).then(_clip(pl.col("p_alloc"), low, high))
    frame = frame.with_columns(at_p_alloc=begin).with_columns(
        at_p_told=_clip(pl.col("p_told"), pl.col("at_p_alloc"), high)
    )
    moved = pl.max_horizontal(
        (pl.col("at_p_alloc") - pl.col("p_alloc")).abs(), (pl.col("at_p_told") - pl.col("p_told")).abs()
    )
    mixed = ~known & pl.col("p_post_start").is_not_null()
    frame = frame.with_columns(
        seg_readback=pl.col("at_p_told") - pl.col("at_p_alloc"), disorder=pl.max_horizontal("disorder", moved)
    ).with_columns(
        seg_prefill_queue=pl.when(~mixed).then(pl.col("seg_prefill_queue") - pl.col("seg_readback").fill_null(0))
    )
    return _add_tries(_split(frame, handshakes))


def _add_tries(frame: pl.DataFrame) -> pl.DataFrame:
    """Take an attempt whose readback failed out of the way to the attempt that served."""
    if "tried_start" not in frame.columns:
        return frame.with_columns(at_tried=pl.lit(None, pl.Int64))
    low = pl.max_horizontal("ttft_start", "at_r_prefill_start")
    tried = pl.when(pl.col("at_p_start").is_not_null()).then(_clip(pl.col("tried_start"), low, pl.col("at_p_start")))
    frame = frame.with_columns(at_tried=tried)
    spent = pl.col("at_p_start") - pl.col("at_tried")
    was_tried = pl.col("at_tried").is_not_null()
    # On ingress as far as it was charged: without a router the first arrival is the start already.
    return frame.with_columns(
        seg_prefill_ingress=pl.when(was_tried)
        .then(pl.col("seg_prefill_ingress") - spent)
        .otherwise("seg_prefill_ingress"),
        seg_readback=pl.when(was_tried).then(pl.col("seg_readback").fill_null(0) + spent).otherwise("seg_readback"),
        rbk_unresolved=pl.when(was_tried)
        .then(pl.col("rbk_unresolved").fill_null(0) + spent)
        .otherwise("rbk_unresolved"),
    )


def columns() -> tuple[str, ...]:
    """Columns that charge_readback adds."""
    return (
        "at_p_alloc",
        "at_p_told",
        "at_tried",
        "seg_readback",
        *(f"rbk_{part}" for part in (*READBACK_PARTS, UNRESOLVED)),
    )


def _split(frame: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    """Split the readback as the hand-over is split: handshake and dispatch before the post, then post, wire and lag."""
    begin, end = pl.col("at_p_alloc"), pl.col("at_p_told")
    frame = frame.with_columns(rb_post=_clip(pl.col("p_post_start"), begin, end))
    frame = frame.with_columns(rb_posted=_clip(pl.col("p_post_end"), pl.col("rb_post"), end))
    frame = frame.with_columns(rb_landed=_clip(pl.col("p_landed"), pl.col("rb_posted"), end))
    sides = ("p_engine", "rb_peer", "rb_rank")
    shaken = measure_handshakes(frame, handshakes, sides, begin, pl.coalesce("rb_post", end))
    frame = frame.with_columns(rbk_handshake=shaken).with_columns(
        rbk_handshake=pl.when(begin.is_not_null()).then("rbk_handshake")
    )
    frame = frame.with_columns(
        rbk_dispatch=pl.col("rb_post") - begin - pl.col("rbk_handshake"),
        rbk_post=pl.col("rb_posted") - pl.col("rb_post"),
        rbk_wire=pl.col("rb_landed") - pl.col("rb_posted"),
        rbk_completion_lag=end - pl.col("rb_landed"),
    )
    told_apart = pl.sum_horizontal(f"rbk_{part}" for part in READBACK_PARTS)
    rest = pl.col("seg_readback") - told_apart
    return frame.with_columns(rbk_unresolved=pl.when(rest > 0).then(rest)).drop("rb_post", "rb_posted", "rb_landed")


def _clip(value: pl.Expr, low: pl.Expr, high: pl.Expr) -> pl.Expr:
    """Move a milestone into [low, high]; NULL where it is."""
    return pl.when(value.is_not_null()).then(pl.max_horizontal(pl.min_horizontal(value, high), low))

"""How far each request came: what the unfinished ones waited for, and which half of the evidence is missing."""

from __future__ import annotations

import polars as pl

from .segments import HANDOVER_CHAIN, PREFILL_CHAIN, PULL_CHAIN

AFTER_FIRST_TOKEN = "decode"
"""What a request waits for that got its first token and not its last."""
_IS_PUSH = pl.col("mode") == "push"


def add_progress(frame: pl.DataFrame) -> pl.DataFrame:
    """Add waiting_for (the next segment after the furthest milestone), has_first, is_unfinished and missing.

    A request is finished when D says so or the router answered it completely.
    missing lists "prefill" and "decode" for an engine that no span tells of (a stock peer, or a killed one), and
    "transfer" when a remote load was waited for and the instrumented side that posts did not.
    """
    has_first = pl.col("d_first").is_not_null() | pl.col("r_first_byte").is_not_null()
    ended = pl.col("d_end").is_not_null() | (pl.col("r_status") == "ok").fill_null(value=False)
    poster = pl.when(_IS_PUSH).then("p_id").otherwise("d_id")
    no_transfer = pl.col("waited").fill_null(value=False) & pl.col("post_start").is_null() & poster.is_not_null()
    parts = {"prefill": pl.col("p_id").is_null(), "decode": pl.col("d_id").is_null(), "transfer": no_transfer}
    combinations = [[name for place, name in enumerate(parts) if number >> place & 1] for number in range(8)]
    number = frame.select(sum(test.cast(pl.UInt8) * (1 << place) for place, test in enumerate(parts.values())))
    frame = frame.with_columns(
        has_first=has_first,
        is_unfinished=~(has_first & ended),
        missing=pl.Series(combinations, dtype=pl.List(pl.String)).gather(number.to_series()),
    )
    return frame.with_columns(waiting_for=_find_waits(frame))


def _find_waits(frame: pl.DataFrame) -> pl.Series:
    """What each request waits for; only those without a first token, which are few, need a look at their milestones."""
    early = frame.with_row_index("row").filter(~pl.col("has_first"))
    found = early.select("row", wait=pl.when(_IS_PUSH).then(_wait_in_push()).otherwise(_wait_in_pull()))
    waits = pl.repeat(AFTER_FIRST_TOKEN, frame.height, eager=True)
    return waits.scatter(found["row"], found["wait"])


def _wait_in_pull() -> pl.Expr:
    stuck = pl.col("p_alloc").is_not_null() & pl.col("p_sched").is_null() & _has_no_end()
    return (
        pl.when(stuck & pl.col("d_start").is_null())
        .then(pl.lit("readback"))
        .otherwise(_walk(PULL_CHAIN, pl.lit("route")))
    )


def _has_no_end() -> pl.Expr:
    """Whether a request ended in its readback; what failed may still be computed, unless the request failed with it."""
    failed = (pl.col("rb_outcome") == "failed") & (pl.col("p_finish") == "finished_error")
    return pl.col("p_told").is_null() | (pl.col("rb_outcome").is_in(["aborted", "unknown"]) | failed).fill_null(
        value=False
    )


def _wait_in_push() -> pl.Expr:
    """P first; when its prompt is done, D's branch says what P waits for."""
    branch = (
        pl.when(pl.col("reg_seen").is_not_null()).then(pl.lit("dispatch"))
        .when(pl.col("d_start").is_null()).then(pl.lit("pairing"))
        .when(pl.col("d_alloc").is_null()).then(pl.lit("decode_admission"))
        .otherwise(pl.lit("registration"))
    )  # fmt: skip
    prefill = pl.when(pl.col("p_end").is_not_null()).then(branch).otherwise(_walk(PREFILL_CHAIN, pl.lit("route")))
    return _walk(HANDOVER_CHAIN, prefill)


def _walk(chain: tuple[tuple[str, str], ...], waiting: pl.Expr) -> pl.Expr:
    for (_, milestone), (following, _) in zip(chain, (*chain[1:], ("", "")), strict=True):
        if following:
            waiting = pl.when(pl.col(milestone).is_not_null()).then(pl.lit(following)).otherwise(waiting)
    return waiting

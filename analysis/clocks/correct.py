"""Frames of milestones put on one clock: whole rows by the rate and the shift of their own clock; pure transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from .relation import Relation

ENGINE_COLUMNS: Mapping[str, Sequence[str]] = {
    "p_boot": ("p_start", "p_sched", "p_end", "reg_seen"),
    "d_boot": ("d_start", "d_alloc", "d_told", "d_sched", "d_first", "d_end", "notified_at", "notified_apart"),
    "x_boot": ("post_start", "post_end", "landed_after", "landed_done"),
}
ROUTER_COLUMNS: Mapping[str, Sequence[str]] = {
    "r_boot": (
        "r_start", "r_end", "r_client_sent", "r_first_byte", "r_prefill_start", "r_prefill_end", "r_decode_start",
        "r_decode_first",
    ),
}  # fmt: skip
READBACK_COLUMNS: Mapping[str, Sequence[str]] = {
    "p_boot": ("p_alloc", "p_told", "p_post_start", "p_post_end", "p_landed"),
}
OWN_COLUMNS: Mapping[str, Sequence[str]] = {
    "boot": ("begin", "finish", "at", "registration_seen", "w_begin", "w_finish", "submit_begin"),
}
"""Of rows that are of one engine: its handshakes, steps, spans and levels."""


def correct_engines(frame: pl.DataFrame, relation: Relation) -> pl.DataFrame:
    """Put rows of sql/milestones.sql on the reference clock; who posts is P in push and D otherwise."""
    posts = frame.with_columns(x_boot=pl.when(pl.col("mode") == "push").then("p_boot").otherwise("d_boot"))
    return correct(posts, relation, ENGINE_COLUMNS).drop("x_boot")


def correct_handshakes(frame: pl.DataFrame, engines: pl.DataFrame, relation: Relation) -> pl.DataFrame:
    """Put rows of sql/handshakes.sql on the reference clock, each by the boot that its engine has in the milestones."""
    return correct_rows(frame, list_engine_boots(engines), relation)


def list_engine_boots(requests: pl.DataFrame) -> pl.DataFrame:
    """List engine and boot of all engines that rows with p_engine, p_boot, d_engine and d_boot name."""
    sides = [requests.select(engine=f"{side}_engine", boot=f"{side}_boot") for side in ("p", "d")]
    return pl.concat(sides).drop_nulls().unique("engine", keep="first", maintain_order=True)


def correct_rows(frame: pl.DataFrame, boots: pl.DataFrame, relation: Relation | None) -> pl.DataFrame:
    """Put rows that name their engine on the reference clock; left as they are in a run of one boot."""
    if relation is None:
        return frame
    own = frame.drop("boot", strict=False).join(boots, on="engine", how="left", maintain_order="left")
    return correct(own, relation, OWN_COLUMNS)


def correct(frame: pl.DataFrame, relation: Relation, columns: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Put some columns of Unix ns on the reference clock; boot column -> stamps of that clock. Absent columns are left.

    A row's clock is looked up once, at its first stamp, and runs on from there at its rate of that time: what happened
    on one clock keeps its order and, but for the rates, its lengths.
    """
    for boot, names in columns.items():
        present = [name for name in names if name in frame.columns and frame[name].count()]
        if not present or boot not in frame.columns or frame.is_empty():
            continue
        anchor = frame.select(pl.min_horizontal(present).alias("at"))["at"]
        shift, rate = find_shifts(relation, frame[boot], anchor)
        held = {"_at": anchor, "_shift": pl.Series(shift), "_rate": pl.Series(rate)}
        frame = frame.with_columns(**held).with_columns(
            pl.col(name) - pl.col("_shift") - _gain(pl.col(name)) for name in present
        )
        frame = frame.drop(*held)
    return frame


def find_shifts(relation: Relation, boots: pl.Series, at: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Find what to take off each row's stamps: (ns at its anchor, ns per ns since then); 0 where a clock is unknown."""
    places = relation.find_places(boots)
    zero = np.where(places >= 0, relation.zero[places], 0)
    t = (at.fill_null(0).to_numpy() - zero).astype(np.float64)
    known = np.where(places >= 0, places, relation.reference)
    guess, rate = relation.guess(known, t)
    shift = np.where(places >= 0, zero - relation.zero[relation.reference] + np.rint(guess).astype(np.int64), 0)
    return shift, np.where(places >= 0, rate, 0.0)


def _gain(stamp: pl.Expr) -> pl.Expr:
    """What the clock gained since the row's first stamp, ns."""
    return ((stamp - pl.col("_at")) * pl.col("_rate")).round(0).cast(pl.Int64)

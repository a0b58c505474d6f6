"""Drag and slack of every segment of every request (critical path method; Devaux 1999 for drag). Columnar, no I/O.

A request is a small network. Pull: one chain. Push: the router sends two legs at once, P's branch (ingress, queue,
compute) and D's branch (its leg's way, admission, handshake, registration) run side by side and meet when both sides
are ready; from there one chain. Ranks move their shares side by side: a transfer's segments are those of the last rank,
and what it alone cost is its lead over the one before it.

drag: how much sooner the first token would have come had the segment taken no time; never more than its length, nor
than the lead of the branch beside it. slack: how much longer a segment beside the critical path could have taken.
A request's own work is replayed, not its neighbours': a queue that would shrink for everybody counts once.
"""

from __future__ import annotations

import polars as pl

from ..segments import SEGMENTS

P_BRANCH = ("prefill_ingress", "prefill_queue", "readback", "prefill_compute")
D_BRANCH = ("pairing", "decode_admission", "handshake", "registration")
OF_PUSH = ("shaken", "shaken_all", "b_start")
"""Columns that only a budget with push requests has."""


def find_paths(budgets: pl.DataFrame, ranks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Find the critical path of every request.

    budgets: rows of a breakdown. ranks: rows of sql/rank_ends.sql of a run with several ranks, or None.
    Adds len_<segment>, drag_<segment> and slack_<segment> (Int64 ns; NULL where the segment is unknown), lead (ns that
    the critical branch of a push was behind the other: P's if > 0, D's if < 0; NULL without two branches) and rank_lead
    (ns between the last rank and the one before it; NULL with one rank).
    """
    absent = [pl.lit(None, pl.Int64).alias(name) for name in OF_PUSH if name not in budgets.columns]
    frame = _add_rank_lead(budgets.with_columns(absent), ranks).with_columns(lead=_measure_lead())
    frame = frame.with_columns(**{f"len_{name}": length for name, length in _list_lengths().items()})
    drags = {f"drag_{name}": _drag(name) for name in SEGMENTS}
    slacks = {f"slack_{name}": _slack(name) for name in SEGMENTS}
    return frame.with_columns(**drags, **slacks)


def _add_rank_lead(budgets: pl.DataFrame, ranks: pl.DataFrame | None) -> pl.DataFrame:
    if ranks is None or ranks.is_empty():
        return budgets.with_columns(rank_lead=pl.lit(None, pl.Int64))
    own = pl.when(pl.col("mode") == "push").then("p_id").otherwise("d_id")
    leads = ranks.select(x_engine="engine", _own="id", rank_lead="lead_ns").unique(["x_engine", "_own"])
    found = budgets.with_columns(_own=own).join(leads, on=["x_engine", "_own"], how="left", maintain_order="left")
    return found.drop("_own")


def _measure_lead() -> pl.Expr:
    """Both ends of a push's branches are on P's clock: prompt done, registration seen."""
    two = (pl.col("mode") == "push") & pl.col("p_end").is_not_null() & pl.col("reg_seen").is_not_null()
    return pl.when(two & pl.col("seg_prefill_compute").is_not_null()).then(pl.col("p_end") - pl.col("reg_seen"))


def _list_lengths() -> dict[str, pl.Expr]:
    """Whole lengths: what a push's budget charges of D's branch is only what sticks out behind P's."""
    whole = {name: pl.col(f"seg_{name}") for name in SEGMENTS}
    push = pl.col("mode") == "push"
    sent = pl.coalesce(pl.min_horizontal("r_prefill_start", "r_decode_start"), "ttft_start")
    way = (pl.coalesce("b_start", "d_start") - sent).clip(lower_bound=0)
    whole["pairing"] = pl.when(push & pl.col("d_start").is_not_null()).then(way)
    for name in ("decode_admission", "registration", "handshake"):
        charged, hidden = pl.col(f"seg_{name}"), pl.col(f"hid_{name}")
        known = charged.is_not_null() | hidden.is_not_null()
        whole[name] = pl.when(push & known).then(pl.sum_horizontal(charged, hidden)).otherwise(charged)
    return whole


def _drag(name: str) -> pl.Expr:
    """Length, cut to the lead that the branch beside it leaves."""
    length, charged, lead = pl.col(f"len_{name}"), pl.col(f"seg_{name}"), pl.col("lead")
    ahead, behind = lead.clip(lower_bound=0), (-lead).clip(lower_bound=0)
    if name in P_BRANCH:
        return pl.when(lead.is_not_null() & length.is_not_null()).then(_least(length, ahead)).otherwise(length)
    if name == "handshake":  # in D's branch, after the meeting, or in part in both
        inside, after = pl.col("shaken_all").fill_null(0), charged - pl.col("shaken").fill_null(0)
        return (
            pl.when(lead.is_not_null() & charged.is_not_null()).then(_least(inside, behind) + after).otherwise(charged)
        )
    if name in D_BRANCH:
        return pl.when(lead.is_not_null() & length.is_not_null()).then(_least(length, behind)).otherwise(charged)
    return length


def _slack(name: str) -> pl.Expr:
    """The other branch's lead; nothing on the critical path."""
    length, lead = pl.col(f"len_{name}"), pl.col("lead")
    spare = pl.lit(0, pl.Int64)
    if name in P_BRANCH:
        spare = (-lead).clip(lower_bound=0).fill_null(0)
    elif name in D_BRANCH:
        spare = lead.clip(lower_bound=0).fill_null(0)
    if name == "handshake":
        spare = pl.when(pl.col("seg_handshake") > 0).then(0).otherwise(spare)
    return pl.when(length.is_not_null()).then(spare)


def _least(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    return pl.min_horizontal(one, other)

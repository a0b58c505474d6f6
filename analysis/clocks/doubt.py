"""How far the clocks may err in each request, and what that makes of its segments.

A segment between two clocks is known within the bounds of these two; one inside one clock is not touched. Between
clocks that no messages relate both ways there is no number: the segment is NULL, its time is in the residual, and a
request whose TTFT would be measured across them has no budget.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ..segments import PULL_CHAIN, PUSH_CHAIN, SEGMENTS
from .relation import Relation

SIDES = {"rp": ("r", "p"), "rd": ("r", "d"), "pd": ("p", "d")}
MEETING = ("pairing", "decode_admission", "registration")
_DOUBTS = [f"doubt_{pair}" for pair in SIDES]
UNKNOWN = -1
"""Stands for a doubt without bound: the clocks are not related."""


def add_doubts(requests: pl.DataFrame, relation: Relation | None) -> pl.DataFrame:
    """Add doubt_rp, doubt_rd and doubt_pd (ns: 0 on one clock, UNKNOWN if not related) and clocks_apart (ns).

    requests: corrected attempts with r_boot, p_boot, d_boot. clocks_apart: how far the wall clocks of this request's
    processes surely disagree.
    """
    if relation is None or requests.is_empty():
        none = {f"doubt_{pair}": pl.lit(0, pl.Int64) for pair in SIDES}
        return requests.with_columns(**none, clocks_apart=pl.lit(0, pl.Int64))
    at = requests.select(pl.coalesce("r_start", "p_start", "d_start", pl.lit(0))).to_series().to_numpy()
    t = (at - relation.zero[relation.reference]).astype(np.float64)
    places = {side: relation.find_places(requests[f"{side}_boot"]) for side in ("r", "p", "d")}
    heard = {side: requests[f"{side}_boot"].is_not_null().to_numpy() for side in places}
    guesses = {side: relation.guess(np.maximum(place, 0), t)[0] for side, place in places.items()}
    found: dict[str, np.ndarray] = {}
    apart = np.zeros(len(t))
    for pair, (one, other) in SIDES.items():
        both = heard[one] & heard[other]
        taken = guesses[other] - guesses[one]
        doubt, distance = measure_doubt(relation, places[one], places[other], t, taken)
        found[f"doubt_{pair}"] = np.where(both, doubt, 0)
        apart = np.maximum(apart, np.where(both, distance, 0))
    columns = {name: pl.Series(name, values).cast(pl.Int64) for name, values in found.items()}
    return requests.with_columns(**columns, clocks_apart=pl.Series("clocks_apart", apart).cast(pl.Int64))


def measure_doubt(
    relation: Relation, first: np.ndarray, second: np.ndarray, t: np.ndarray, taken: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Measure how far a corrected difference of two clocks may be off, and how far their wall clocks surely are; ns.

    first, second: places of clocks, -1 where unknown. taken: what the correction took for their rough difference.
    """
    known = (first >= 0) & (second >= 0)
    a, b = np.where(known, first, 0), np.where(known, second, 0)
    low, high = relation.bound(a, b, t)
    doubt = np.maximum(np.maximum(high - taken, taken - low), 0.0)
    wall = (relation.zero[b] - relation.zero[a]).astype(np.float64)
    apart = np.maximum(np.maximum(wall + low, -(wall + high)), 0.0)
    same = known & (first == second)
    related = known & np.isfinite(doubt)
    return (
        np.where(same, 0, np.where(related, np.ceil(np.where(related, doubt, 0.0)), UNKNOWN)),
        np.where(related & ~same, np.where(related, apart, 0.0), 0.0),
    )


def carry_doubts(budgets: pl.DataFrame) -> pl.DataFrame:
    """Add unc_<segment> (ns), ttft_doubt (ns), clock_doubt (ns, the request's largest) and unknown (list of segments).

    budgets: rows of budget.build_budgets with the columns of add_doubts. The landing's uncertainty goes to the two
    segments that it separates, and so does a milestone's move where clocks disagree; a segment across unrelated clocks
    becomes NULL and its time goes to the residual.
    """
    doubts = _list_doubts()
    landing, moves = pl.col("uncertainty_ns").fill_null(0), _list_moves(budgets)
    zero = pl.lit(0, pl.Int64)
    frame = budgets.with_columns(
        pl.when(pl.col(f"seg_{name}").is_not_null()).then(doubts.get(name, zero)).alias(f"unc_{name}")
        for name in SEGMENTS
    ).with_columns(ttft_doubt=_doubt_ttft())
    unknown = {name: pl.col(f"unc_{name}") == UNKNOWN for name in doubts}
    lost = pl.sum_horizontal(pl.when(test).then(pl.col(f"seg_{name}")) for name, test in unknown.items())
    names = pl.concat_list(pl.when(test).then(pl.lit(name)) for name, test in unknown.items()).list.drop_nulls()
    frame = frame.with_columns(residual=pl.col("residual") + lost, unknown=names, **{
        f"seg_{name}": pl.when(~test).then(pl.col(f"seg_{name}")) for name, test in unknown.items()
    }).with_columns(
        (pl.when(pl.col(f"seg_{name}").is_not_null()).then(
            pl.col(f"unc_{name}") + moves.get(name, zero) + (landing if name in ("wire", "completion_lag") else 0)
        )).alias(f"unc_{name}")
        for name in SEGMENTS
    )  # fmt: skip
    largest = pl.max_horizontal(pl.col(f"doubt_{pair}") for pair in SIDES)
    return frame.with_columns(clock_doubt=largest.clip(lower_bound=0))


def drop_unknown(budgets: pl.DataFrame) -> pl.DataFrame:
    """Drop the requests whose TTFT would be measured between unrelated clocks."""
    return budgets.filter(pl.col("ttft_doubt") != UNKNOWN)


def _list_moves(budgets: pl.DataFrame) -> dict[str, pl.Expr]:
    """Of each segment: how far its ends were moved by the budget because clocks disagree (ns)."""
    if not (budgets["disorder"] > 0).any() or not (budgets.select(pl.max_horizontal(_DOUBTS).max()).item() or 0):
        return {}
    moves: dict[str, pl.Expr] = {}
    for chain, mode in ((PUSH_CHAIN, pl.col("mode") == "push"), (PULL_CHAIN, pl.col("mode") != "push")):
        before = zero = pl.lit(0, pl.Int64)
        for segment, milestone in chain:
            at, raw = f"at_{milestone}", milestone
            here = (pl.col(at) - pl.col(raw)).abs().fill_null(0) if {at, raw} <= {*budgets.columns} else zero
            for name in MEETING if segment == "meeting" else (segment,):
                moves[name] = moves.get(name, pl.lit(0, pl.Int64)) + pl.when(mode).then(before + here).otherwise(0)
            before = here
    return moves


def _doubt_ttft() -> pl.Expr:
    """The router's TTFT is read from one clock; that of the engines spans both if P had the request first."""
    engine, unknown = pl.col("ttft_source") == "engine", pl.col("doubt_pd") == UNKNOWN
    crosses = (unknown | (pl.col("p_start") <= pl.col("d_start"))).fill_null(value=False)
    return pl.when(engine & crosses).then(pl.col("doubt_pd")).otherwise(0)


def _list_doubts() -> dict[str, pl.Expr]:
    """Of each segment that can lie between two clocks: which two, if it does (chains of segments.py)."""
    push, engine = pl.col("mode") == "push", pl.col("ttft_source") == "engine"
    pd, zero = pl.col("doubt_pd"), pl.lit(0, pl.Int64)
    d_first = (pl.col("d_start") < pl.col("p_start")).fill_null(value=False)

    def clipped(begin: str) -> pl.Expr:
        """D's own time, unless P's end cuts it (push)."""
        return push & (pl.col(begin) < pl.col("at_p_end")).fill_null(value=False)

    return {
        "prefill_ingress": pl.when(~engine).then(pl.col("doubt_rp")).when(d_first).then(pd).otherwise(zero),
        "handoff_dispatch": pd,
        "pairing": pd,
        "decode_admission": pl.when(clipped("b_start") & (pl.col("seg_decode_admission") > 0)).then(pd).otherwise(zero),
        "registration": pl.when(push & ~clipped("b_alloc")).then(pd).otherwise(zero),
        "handshake": pl.when(push & (pl.col("seg_handshake") > 0)).then(pd).otherwise(zero),
        "completion_lag": pl.when(push).then(pd).otherwise(zero),
        "delivery": pl.col("doubt_rd"),
    }

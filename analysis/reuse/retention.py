"""The retention curve: how long blocks are kept for the next turn -> block-seconds held, fetches lost or won.

From the ages at which blocks were read, those that expired unread, and turns that came too late. A retention longer
than the recorded one is known only so far: the turns that came too late tell when they came; blocks that nobody asked
for again are taken as held to the end of that retention, which is the most it could cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

MARGIN_S = 5.0
"""vLLM's reader declines a read that begins less than this before the expiry that it was told."""
POINTS = 24
NEXT_TURN = "awaiting_next_turn"
NS_PER_S = 1e9


@dataclass(frozen=True)
class Retention:
    """The curve of one run.

    points: retention_s, block_s, gb_s, lost (fetches that this retention loses), won (turns that came too late and
    would have been fetched), is_recorded, is_known (not longer than the recorded one).
    recorded_s: the recorded retention, None if the leases don't say and none expired. margin_s: MARGIN_S, or 0 when
    reads were seen inside the margin. reads, expired, late: leases read, expired unread, and turns known to have come
    too late.
    """

    points: pl.DataFrame
    recorded_s: float | None
    margin_s: float
    reads: int
    expired: int
    late: int


def draw_retention(classified: pl.DataFrame, decisions: pl.DataFrame) -> Retention | None:
    """Draw the curve; None when nothing was kept for a next turn.

    classified: rows of ledger.classify. decisions: rows of sql/decisions.sql.
    """
    leases = classified.filter((pl.col("reason") == NEXT_TURN) & ~pl.col("is_warmup"))
    if leases.is_empty():
        return None
    recorded = find_retention(leases)
    leases = add_late_turns(leases, decisions, recorded)
    read = leases.filter(pl.col("fate") == "used")
    ages = read["age_s"].drop_nulls()
    inside = recorded is not None and not ages.is_empty() and float(ages.max()) > recorded - MARGIN_S  # type: ignore[arg-type]
    margin = 0.0 if inside or recorded is None or recorded <= MARGIN_S else MARGIN_S
    points = [measure(leases, seconds, margin, recorded) for seconds in choose_points(leases, recorded, margin)]
    return Retention(
        pl.DataFrame(points), recorded, margin, read.height, leases.filter(pl.col("outcome") == "expired").height,
        leases.filter(pl.col("late_s").is_not_null()).height,
    )  # fmt: skip


def find_retention(leases: pl.DataFrame) -> float | None:
    """Find the recorded retention in s: what the leases say, else how long expired ones were held."""
    said = leases["ttl_ns"].drop_nulls()
    if not said.is_empty():
        return float(said.median()) / NS_PER_S  # type: ignore[arg-type]
    held = leases.filter(pl.col("outcome") == "expired")["held_ns"]
    return float(held.median()) / NS_PER_S if held.len() else None  # type: ignore[arg-type]


def add_late_turns(leases: pl.DataFrame, decisions: pl.DataFrame, recorded: float | None) -> pl.DataFrame:
    """Add age_s, held_s and late_s: the age at which a turn asked for blocks and was told that they had expired."""
    late = (
        decisions.filter(pl.col("reason") == "expired")
        .drop_nulls("seconds_to_expiry")
        .select(engine="peer", id="peer_id", late_s=pl.lit(recorded, pl.Float64) - pl.col("seconds_to_expiry"))
        .unique(["engine", "id"], keep="first", maintain_order=True)
    )
    return leases.join(late, on=["engine", "id"], how="left").with_columns(
        age_s=pl.col("age_ns") / NS_PER_S, held_s=pl.col("held_ns") / NS_PER_S
    )


def choose_points(leases: pl.DataFrame, recorded: float | None, margin: float) -> list[float]:
    """Choose retentions: where a fetch is lost or won, thinned to POINTS; the recorded one, twice and four times it."""
    reads = leases.filter(pl.col("fate") == "used")["age_s"].drop_nulls() + margin
    late = leases["late_s"].drop_nulls() + margin
    cuts = sorted({round_up(float(value)) for value in (*reads, *late) if value > 0})
    if len(cuts) > POINTS:
        cuts = [cuts[round(place * (len(cuts) - 1) / (POINTS - 1))] for place in range(POINTS)]
    more = {recorded, 2 * recorded, 4 * recorded} if recorded else set()
    return sorted({0.0, *cuts, *more})


def round_up(value: float) -> float:
    """Round up to two digits: retentions closer to each other than that are one."""
    digits = 1 - math.floor(math.log10(value))
    return float(round(math.ceil(value * 10.0**digits - 1e-6) / 10.0**digits, 9))


def measure(
    leases: pl.DataFrame, seconds: float, margin: float, recorded: float | None
) -> dict[str, float | int | bool | None]:
    """Measure one retention over all leases."""
    limit = pl.lit(seconds)
    used, late = pl.col("fate") == "used", pl.col("late_s").is_not_null()
    in_time = pl.col("age_s") + margin <= limit
    won = late & (pl.col("late_s") + margin <= limit)
    unread = pl.col("outcome") == "expired"
    held = (
        pl.when(used & in_time).then(pl.col("held_s"))
        .when(won).then(pl.min_horizontal("late_s", limit))
        .when(unread).then(limit)
        .otherwise(pl.min_horizontal("held_s", limit))
    )  # fmt: skip
    kept = leases.with_columns(kept=held, lost=used & ~in_time, won=won)
    block_s = float((kept["blocks"] * kept["kept"]).sum())
    sized = kept.drop_nulls("bytes")
    return {
        "retention_s": seconds, "block_s": block_s,
        "gb_s": float((sized["bytes"] * sized["kept"]).sum()) / 1e9 if sized.height else None,
        "lost": int(kept["lost"].sum()), "won": int(kept["won"].sum()), "is_recorded": seconds == recorded,
        "is_known": recorded is None or seconds <= recorded,
    }  # fmt: skip

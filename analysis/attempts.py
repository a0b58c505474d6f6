"""Join what the router saw with what the engines saw: one row per request attempt."""

from __future__ import annotations

import numpy as np
import polars as pl

from .reuse.retries import fold_retries

# Most exact first. An attempt has its prefill's identity and its decode's, which differ when one of them lost the
# caller's trace context or a router renamed one leg. A trace alone can hold many requests, a key can be used again.
LEVELS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("r_trace", "r_key"), ("p_trace", "p_key")),
    (("r_trace", "r_key"), ("d_trace", "d_key")),
    (("r_key",), ("p_key",)),
    (("r_key",), ("d_key",)),
    (("r_trace",), ("p_trace",)),
    (("r_trace",), ("d_trace",)),
)


def join_router(engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Join rows of sql/milestones.sql and sql/routers.sql, each row of either once.

    On each level of identity the n-th router request meets the n-th attempt in time order; what does not meet goes on
    to the next level, and in the end stands alone. Adds trace_id and request_key; fills mode and prompt_tokens. An
    attempt that failed and was sent again is part of the next one (reuse/retries.py).
    """
    met = pick_single_pairs(engines, routers)
    left, right = leave_out(routers, met, "r_row"), leave_out(engines, met, "e_row")
    whole = pl.concat([join_rows(met, engines, routers), _join_others(right, left)], how="diagonal")
    begun = pl.coalesce("r_client_sent", "r_start", pl.min_horizontal("p_start", "d_start"))
    return whole.with_columns(
        mode=pl.coalesce(_unless_empty("mode"), _unless_empty("r_mode"), pl.lit("")),
        trace_id=pl.coalesce("r_trace", "p_trace", "d_trace"),
        request_key=pl.coalesce(_unless_empty("r_key"), _unless_empty("p_key"), "d_key", pl.lit("")),
        prompt_tokens=pl.coalesce("prompt_tokens", "r_prompt_tokens"),
        begun=begun,
    ).pipe(sort_by_time, "begun", ("trace_id", "p_id", "d_id"), nulls_last=True)


def sort_by_time(frame: pl.DataFrame, time: str, ties: tuple[str, ...], *, nulls_last: bool) -> pl.DataFrame:
    """Sort by a stamp, and by texts where stamps are equal: only those rows' texts are compared."""
    order = frame[time].arg_sort(nulls_last=nulls_last).to_numpy().copy()
    twice = frame[time].is_duplicated()
    tied = frame.select(time, *ties).with_row_index("row").filter(twice).sort(time, *ties, nulls_last=nulls_last)
    order[twice.to_numpy()[order]] = tied["row"].to_numpy()
    return frame[order]


def pick_single_pairs(engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Pick the rows (r_row, e_row) whose most exact identity occurs once on either side: nearly all of a large run.

    They meet without a look at time or at the other levels, by a 64-bit hash of their identity.
    """
    router_side, engine_side = LEVELS[0]
    return _pick_single(routers, "r_row", router_side).join(_pick_single(engines, "e_row", engine_side), on="identity")


def _pick_single(frame: pl.DataFrame, row: str, identity: tuple[str, ...]) -> pl.DataFrame:
    known = pl.all_horizontal(pl.col(name) != "" for name in identity)
    hashes = frame.select(known=known, identity=hash_identity(identity)).with_row_index(row).filter("known")
    return hashes.filter(pl.col("identity").is_unique()).select(row, "identity")


def hash_identity(identity: tuple[str, ...]) -> pl.Expr:
    """Hash some columns of text to 64 bits."""
    first, *others = (pl.col(name).hash(seed) for seed, name in enumerate(identity))
    for other in others:
        first = first ^ other
    return first


def leave_out(frame: pl.DataFrame, met: pl.DataFrame, row: str) -> pl.DataFrame:
    """Leave the rows out that have met, by their numbers in a column of met; the others keep their order."""
    left = np.ones(frame.height, dtype=bool)
    left[met[row].to_numpy()] = False
    return frame.filter(pl.Series(left))


def join_rows(met: pl.DataFrame, engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Put the rows of either side that met beside each other."""
    return pl.concat([routers[met["r_row"]], engines[met["e_row"]]], how="horizontal")


def _join_others(engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Join, level by level, what no single identity tells, and leave the rest alone."""
    engines = fold_retries(engines, routers)
    left = routers.with_row_index("r_row")
    right = engines.with_row_index("e_row")
    matches = []
    for router_side, engine_side in LEVELS:
        pairs = _match_nth(left, router_side, right, engine_side)
        matches.append(pairs)
        left = left.join(pairs, on="r_row", how="anti", maintain_order="left")
        right = right.join(pairs, on="e_row", how="anti", maintain_order="left")
    met = join_rows(pl.concat(matches), engines, routers)
    return pl.concat([met, left, right], how="diagonal").drop("r_row", "e_row")


def _match_nth(
    left: pl.DataFrame, left_on: tuple[str, ...], right: pl.DataFrame, right_on: tuple[str, ...]
) -> pl.DataFrame:
    """Match rows (r_row, e_row) of equal identity by their place in time; both sides come in time order."""
    return (
        _number(left, "r_row", left_on)
        .join(_number(right, "e_row", right_on), on=_names(left_on), how="inner")
        .select("r_row", "e_row")
    )


def _number(frame: pl.DataFrame, row: str, identity: tuple[str, ...]) -> pl.DataFrame:
    known = frame.filter(pl.all_horizontal(_unless_empty(name).is_not_null() for name in identity))
    nth = pl.int_range(pl.len()).over(*identity)
    return known.select(row, *(pl.col(name).alias(f"id{place}") for place, name in enumerate(identity)), nth=nth)


def _names(identity: tuple[str, ...]) -> list[str]:
    return [*(f"id{place}" for place in range(len(identity))), "nth"]


def _unless_empty(name: str) -> pl.Expr:
    return pl.when(pl.col(name) != "").then(pl.col(name))

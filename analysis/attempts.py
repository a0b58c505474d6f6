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


BEGUN = ("r_client_sent", "r_start", pl.min_horizontal("p_start", "d_start"))
"""When a request began, as early as anybody saw it."""


def join_router(engines: pl.DataFrame, routers: pl.DataFrame, single: pl.DataFrame) -> pl.DataFrame:
    """Join rows of sql/milestones.sql and sql/routers.sql, each row of either once; returned in time order.

    single: rows that meet by an identity which occurs once (pick_single_pairs). Of the others, on each level of
    identity the n-th router request meets the n-th attempt in time order; what does not meet goes on to the next level,
    and in the end stands alone. Adds trace_id and request_key; fills mode and prompt_tokens. An attempt that failed and
    was sent again is part of the next one (reuse/retries.py).
    """
    others = _join_others(leave_out(engines, single, "e_row"), leave_out(routers, single, "r_row"))
    # The others' halves come after the rows of either side, so that all rows are copied once, in their order.
    rows = {"r_row": routers.height, "e_row": engines.height}
    extra = pl.DataFrame({name: np.arange(others.height, dtype=np.uint32) + start for name, start in rows.items()})
    engines = pl.concat([engines, others.drop(routers.columns)], how="diagonal", rechunk=True)
    routers = pl.concat([routers, others.select(routers.columns)], rechunk=True)
    pairs = pl.concat([single.select(extra.columns), extra])
    whole = join_rows(pairs[_find_order(pairs, engines, routers)], engines, routers)
    return whole.with_columns(
        mode=pl.coalesce(_unless_empty("mode"), _unless_empty("r_mode"), pl.lit("")),
        trace_id=pl.coalesce("r_trace", "p_trace", "d_trace"),
        request_key=pl.coalesce(_unless_empty("r_key"), _unless_empty("p_key"), "d_key", pl.lit("")),
        prompt_tokens=pl.coalesce("prompt_tokens", "r_prompt_tokens"),
        begun=pl.coalesce(*BEGUN),
    )


def _find_order(pairs: pl.DataFrame, engines: pl.DataFrame, routers: pl.DataFrame) -> np.ndarray:
    """Find the order in time of pairs of rows: by when each began, by texts only where that is equal."""
    stamps = ("p_start", "d_start"), ("r_client_sent", "r_start")
    begun = join_rows(pairs, *(frame.select(names) for frame, names in zip((engines, routers), stamps, strict=True)))
    timed = begun.select(begun=pl.coalesce(*BEGUN))
    texts = ("p_trace", "d_trace", "p_id", "d_id")
    tied = pairs.filter(timed["begun"].is_duplicated())
    ties = join_rows(tied, engines.select(texts), routers.select("r_trace"))
    ties = ties.select(pl.coalesce("r_trace", "p_trace", "d_trace"), "p_id", "d_id")
    return order_by_time(timed["begun"], ties, nulls_last=True)


def order_by_time(times: pl.Series, ties: pl.DataFrame, *, nulls_last: bool) -> np.ndarray:
    """Return the rows in order of their stamps, and of the texts in ties where stamps are equal (one row for each)."""
    order = times.arg_sort(nulls_last=nulls_last).to_numpy().copy()
    twice = times.is_duplicated()
    tied = ties.insert_column(0, times.filter(twice).alias("time")).with_columns(row=pl.Series(np.flatnonzero(twice)))
    tied = tied.sort(tied.columns[:-1], nulls_last=nulls_last)
    order[twice.to_numpy()[order]] = tied["row"].to_numpy()
    return order


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
    engines = _sort_by_time(engines.with_columns(at=pl.coalesce("p_start", "d_start")), "p_id", "d_id").drop("at")
    routers = _sort_by_time(routers.with_columns(at="r_start"), "r_trace").drop("at")
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


def _sort_by_time(frame: pl.DataFrame, *ties: str) -> pl.DataFrame:
    texts = frame.filter(pl.col("at").is_duplicated()).select(ties)
    return frame[order_by_time(frame["at"], texts, nulls_last=False)]


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

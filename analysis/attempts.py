"""Join what the router saw with what the engines saw: one row per request attempt."""

from __future__ import annotations

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
    engines = fold_retries(engines, routers)
    left = routers.with_row_index("r_row")
    right = engines.with_row_index("e_row")
    matches = []
    for router_side, engine_side in LEVELS:
        pairs = _match_nth(left, router_side, right, engine_side)
        matches.append(pairs)
        left = left.join(pairs, on="r_row", how="anti", maintain_order="left")
        right = right.join(pairs, on="e_row", how="anti", maintain_order="left")
    met = (
        pl.concat(matches)
        .join(routers.with_row_index("r_row"), on="r_row")
        .join(engines.with_row_index("e_row"), on="e_row")
    )
    whole = pl.concat([met, left, right], how="diagonal").drop("r_row", "e_row")
    begun = pl.coalesce("r_client_sent", "r_start", pl.min_horizontal("p_start", "d_start"))
    return whole.with_columns(
        mode=pl.coalesce(_unless_empty("mode"), _unless_empty("r_mode"), pl.lit("")),
        trace_id=pl.coalesce("r_trace", "p_trace", "d_trace"),
        request_key=pl.coalesce(_unless_empty("r_key"), _unless_empty("p_key"), "d_key", pl.lit("")),
        prompt_tokens=pl.coalesce("prompt_tokens", "r_prompt_tokens"),
        begun=begun,
    ).sort("begun", "trace_id", "p_id", "d_id", nulls_last=True)


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

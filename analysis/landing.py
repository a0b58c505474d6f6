"""When the bytes of a transfer landed, estimated between the two polls that bracket it.

NIXL says "done" only when asked and vLLM asks once per engine step, so a landing is known as an interval
[last poll in progress, first poll done]; in push the completion notification on D, which follows the bytes, bounds it
from above as well. Where the interval is tight it *is* the transfer time, so the tight transfers of a pair of engines
in one direction calibrate a line, time = fixed + bytes * ns_per_byte, that places the others inside their own bounds.
A midpoint would charge half a decode step to the wire of every transfer, however small.
"""

from __future__ import annotations

import polars as pl

TIGHT_NS = 2_000_000
"""A bracket this narrow counts as tight: 2 ms is below anything that the budget is asked to tell apart."""
TIGHT_SHARE = 0.10
"""So does one that is at most this share of the whole transfer."""
MIN_TIGHT = 5
"""Fewer tight transfers than this calibrate nothing: the midpoint is taken."""
MIN_SIZE_RATIO = 2.0
"""The fixed part is separable when the larger half of the sizes is at least this many times the smaller half."""

ROUTE = ("x_engine", "x_peer", "x_direction")


def bound_landing(frame: pl.DataFrame) -> pl.DataFrame:
    """Add landed_lo and landed_hi (ns): the tightest bounds, with the lower one never above the upper one."""
    upper = pl.min_horizontal("landed_done", "notified_at")
    known = pl.col("landed_done").is_not_null()
    return frame.with_columns(landed_hi=pl.when(known).then(upper)).with_columns(
        landed_lo=pl.when(known).then(pl.min_horizontal("landed_after", "landed_hi"))
    )


def calibrate(frame: pl.DataFrame) -> pl.DataFrame:
    """Calibrate each route from its tight transfers.

    frame: rows with ROUTE, bytes, post_end, landed_lo and landed_hi (ns).
    Returns ROUTE, tight (how many), fixed_ns and ns_per_byte, for routes with at least MIN_TIGHT tight transfers.
    The line goes through the medians of the smaller and the larger half of the sizes, so that outliers don't bend it.
    """
    width = pl.col("landed_hi") - pl.col("landed_lo")
    whole = pl.col("landed_hi") - pl.col("post_end")
    tight = frame.filter((width <= TIGHT_NS) | (width <= TIGHT_SHARE * whole), pl.col("bytes") > 0).with_columns(
        took=(pl.col("landed_lo") - pl.col("post_end") + width / 2).clip(lower_bound=0),
        is_large=pl.col("bytes") > pl.col("bytes").median().over(ROUTE),
    )
    small, large = ~pl.col("is_large"), pl.col("is_large")
    medians = tight.group_by(ROUTE).agg(
        tight=pl.len(),
        per_byte=(pl.col("took") / pl.col("bytes")).median(),
        took_small=pl.col("took").filter(small).median(),
        took_large=pl.col("took").filter(large).median(),
        bytes_small=pl.col("bytes").filter(small).median(),
        bytes_large=pl.col("bytes").filter(large).median(),
    )
    spread = pl.col("bytes_large") >= MIN_SIZE_RATIO * pl.col("bytes_small")
    slope = (pl.col("took_large") - pl.col("took_small")) / (pl.col("bytes_large") - pl.col("bytes_small"))
    fixed = pl.col("took_small") - slope * pl.col("bytes_small")
    usable = (spread & (slope >= 0) & (fixed >= 0)).fill_null(value=False)
    return medians.filter(pl.col("tight") >= MIN_TIGHT).select(
        *ROUTE,
        "tight",
        fixed_ns=pl.when(usable).then(fixed).otherwise(0.0),
        ns_per_byte=pl.when(usable).then(slope).otherwise(pl.col("per_byte")),
    )


def estimate_landing(frame: pl.DataFrame) -> pl.DataFrame:
    """Add landed (ns), its bounds and uncertainty_ns, the distance to the farther bound; NULL without a wire span."""
    bounded = bound_landing(frame)
    placed = bounded.join(calibrate(bounded), on=list(ROUTE), how="left", maintain_order="left")
    # Whole ns since 1970 don't fit a float: only durations are computed as floats.
    took = (pl.col("fixed_ns") + pl.col("ns_per_byte") * pl.col("bytes")).round(0).cast(pl.Int64)
    middle = pl.col("landed_lo") + (pl.col("landed_hi") - pl.col("landed_lo")) // 2
    landed = pl.coalesce(pl.col("post_end") + took, middle).clip(pl.col("landed_lo"), pl.col("landed_hi"))
    return placed.with_columns(landed=landed).with_columns(
        uncertainty_ns=pl.max_horizontal(pl.col("landed") - pl.col("landed_lo"), pl.col("landed_hi") - pl.col("landed"))
    )

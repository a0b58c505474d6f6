"""A push's landing bounded by the notification on a D of another host: P's writer may poll long after the bytes landed.

The notification follows the bytes. On D's corrected clock it bounds the landing on P's within the doubt of the two, and
where P's threads are busy that is far tighter than P's own polls. The middle of the clocks' interval decides where the
landing is put, the whole of it how unsure that is.
"""

from __future__ import annotations

import polars as pl


def place_notifications(requests: pl.DataFrame) -> pl.DataFrame:
    """Take the notification on another host for the landing's upper bound, where the clocks are related.

    requests: attempts with doubt_pd (doubt.add_doubts), before landing.estimate_landing. Where the clocks' middle puts
    the notification before a poll that saw the transfer in progress, the poll is believed.
    """
    heard = pl.max_horizontal("notified_apart", "landed_after")
    return requests.with_columns(notified_at=pl.coalesce("notified_at", pl.when(_is_heard()).then(heard)))


def widen_landings(requests: pl.DataFrame) -> pl.DataFrame:
    """Widen landed_lo, landed_hi and uncertainty_ns of these landings by the doubt of the two clocks.

    Below too: P hears of a landing by an answer, and polls "in progress" until it has come (landing.bound_landing).
    """
    heard, doubt = pl.col("notified_apart"), pl.col("doubt_pd")
    # A landing inside the call that posts is charged to the call.
    first = pl.min_horizontal("landed_lo", pl.max_horizontal(heard - doubt, "post_end"))
    last = pl.max_horizontal("landed_hi", pl.min_horizontal("landed_done", heard + doubt))
    return requests.with_columns(
        landed_lo=pl.when(_is_heard()).then(first).otherwise(pl.col("landed_lo")),
        landed_hi=pl.when(_is_heard()).then(last).otherwise(pl.col("landed_hi")),
    ).with_columns(
        uncertainty_ns=pl.max_horizontal(
            "uncertainty_ns", pl.col("landed") - pl.col("landed_lo"), pl.col("landed_hi") - pl.col("landed")
        )
    )


def _is_heard() -> pl.Expr:
    """Whether D of another host, whose clock is related to P's, told of the transfer."""
    known = pl.col("notified_apart").is_not_null() & pl.col("landed_done").is_not_null()
    return known & (pl.col("doubt_pd") > 0)

"""What transfers cost others: each step's connector time, charged to those who decoded in it and to who caused it.

Where a transfer is submitted (which thread) and which way it moves (READ, WRITE) are taken from its `post` span, never
from the mode: a connector that submits from another thread comes out right without a change here.
"""

from __future__ import annotations

from typing import Any

import polars as pl

NOBODY = ""
"""Culprit of connector time that belongs to no transfer (heartbeats, an empty poll)."""

STEP = ("engine", "life", "index")

CHARGES = {
    "engine": pl.String, "life": pl.Int64, "index": pl.Int64, "culprit": pl.String, "direction": pl.String,
    "what": pl.String, "cost_ns": pl.Int64,
}  # fmt: skip


def charge_posts(steps: pl.DataFrame, posts: pl.DataFrame) -> pl.DataFrame:
    """Charge the submissions of every step to the requests whose transfers were posted in it.

    Posts on the step's own thread, between the begin and end of its submissions, share the time: each from the end of
    the one before it to its own end (its preparation comes before its span). What follows the last one is nobody's.
    Returns rows of CHARGES with what = "post".
    """
    submits = steps.filter(pl.col("submit") > 0).select(
        "engine", "life", "index", "rank", "submit", begin_submit="submit_begin",
        end_submit=pl.col("submit_begin") + pl.col("submit"), step_thread="thread",
    )  # fmt: skip
    own = posts.filter(pl.col("name") == "post").sort("begin")
    if submits.is_empty() or own.is_empty():
        return _nobodys(submits, "submit", "post", pl.DataFrame(schema=CHARGES))
    met = own.join_asof(
        submits.sort("begin_submit"), left_on="begin", right_on="begin_submit", by=["engine", "rank"],
        check_sortedness=False,
    ).filter((pl.col("thread") == pl.col("step_thread")) & (pl.col("begin") < pl.col("end_submit")))  # fmt: skip
    step = list(STEP)
    ends = pl.min_horizontal("finish", "end_submit")
    charged = met.sort([*step, "begin"]).with_columns(ends=ends).with_columns(
        cost_ns=pl.col("ends") - pl.coalesce(pl.col("ends").shift(1).over(step), "begin_submit")
    ).select(*step, culprit="request_id", direction="direction", what=pl.lit("post"), cost_ns="cost_ns")  # fmt: skip
    return _nobodys(submits, "submit", "post", charged)


def charge_polls(steps: pl.DataFrame, posts: pl.DataFrame) -> pl.DataFrame:
    """Charge each step's poll in equal parts to the transfers that its engine was polling then; else it's nobody's.

    Returns rows of CHARGES with what = "poll".
    """
    polls = steps.filter(pl.col("poll") > 0).select(
        "engine", "life", "index", "rank", "poll", begin_poll=pl.col("w_finish") - pl.col("poll"), end_poll="w_finish"
    )
    wires = posts.filter(pl.col("name") == "wire")
    parts = []
    for (engine, rank), own in polls.group_by("engine", "rank"):
        found = wires.filter((pl.col("engine") == engine) & (pl.col("rank") == rank))
        if found.is_empty():
            continue
        ordered = own.sort("begin_poll")
        first = ordered["end_poll"].search_sorted(found["begin"], side="left")
        last = ordered["begin_poll"].search_sorted(found["finish"], side="right")
        spans = (
            found.with_columns(place=pl.int_ranges(pl.Series(first), pl.Series(last)))
            .explode("place")
            .drop_nulls("place")
        )
        parts.append(
            spans.join(ordered.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64)), on="place").select(
                "engine", "life", "index", culprit="request_id", direction="direction", poll="poll"
            )
        )
    if not parts:
        return _nobodys(polls, "poll", "poll", pl.DataFrame(schema=CHARGES))
    step = list(STEP)
    shared = pl.concat(parts).with_columns(cost_ns=pl.col("poll") // pl.len().over(step))
    charged = shared.select(*step, "culprit", "direction", what=pl.lit("poll"), cost_ns="cost_ns")
    return _nobodys(polls, "poll", "poll", charged)


def _nobodys(rows: pl.DataFrame, column: str, what: str, charged: pl.DataFrame) -> pl.DataFrame:
    """Add the part of each step's time that no transfer was charged with."""
    step = list(STEP)
    spent = charged.group_by(step).agg(spent=pl.col("cost_ns").sum())
    rest = rows.join(spent, on=step, how="left").select(
        *step, culprit=pl.lit(NOBODY), direction=pl.lit(""), what=pl.lit(what),
        cost_ns=pl.col(column) - pl.col("spent").fill_null(0),
    ).filter(pl.col("cost_ns") > 0)  # fmt: skip
    return pl.concat([charged.cast(CHARGES), rest.cast(CHARGES)])  # type: ignore[arg-type]


def charge_victims(steps: pl.DataFrame, posts: pl.DataFrame) -> pl.DataFrame:
    """Charge posts and polls of every step to the requests that decoded in it.

    Returns rows of CHARGES with victims (requests that decoded in the step) and delay_ns (cost times victims).
    """
    charges = pl.concat([charge_posts(steps, posts), charge_polls(steps, posts)])
    sizes = steps.select("engine", "life", "index", "step", "begin", victims="decoding")
    return charges.join(sizes, on=["engine", "life", "index"]).with_columns(
        delay_ns=pl.col("cost_ns") * pl.col("victims")
    )


def rank_culprits(charges: pl.DataFrame) -> pl.DataFrame:
    """Sum the delay that each transfer caused to others, most first (ns)."""
    return (
        charges.filter(pl.col("culprit") != NOBODY)
        .group_by("engine", "culprit")
        .agg(
            direction=pl.col("direction").first(),
            steps=pl.col("index").n_unique(),
            victims=pl.col("victims").max(),
            cost_ns=pl.col("cost_ns").sum(),
            post_delay_ns=pl.col("delay_ns").filter(pl.col("what") == "post").sum(),
            poll_delay_ns=pl.col("delay_ns").filter(pl.col("what") == "poll").sum(),
            delay_ns=pl.col("delay_ns").sum(),
        )
        .sort("delay_ns", "culprit", descending=[True, False])
    )


def locate_posts(posts: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Say where submissions ran: by engine, thread and direction, and whether that thread runs the engine's steps."""
    threads = steps.filter(pl.col("thread").is_not_null()).select("engine", "rank", "thread").unique()
    runs_steps = threads.with_columns(place=pl.lit("engine thread"))
    return (
        posts.filter(pl.col("name") == "post")
        .join(runs_steps, on=["engine", "rank", "thread"], how="left")
        .with_columns(pl.col("place").fill_null("other thread"), took=pl.col("finish") - pl.col("begin"))
        .group_by("engine", "role", "mode", "thread", "place", "direction")
        .agg(posts=pl.len(), post_ns=pl.col("took").sum(), descriptors=pl.col("descriptors").mean())
        .sort("engine", "post_ns", descending=[False, True])
    )


def summarize_interference(steps: pl.DataFrame, posts: pl.DataFrame) -> dict[str, Any] | None:
    """Summarize what transfers cost the requests that were decoding (ms); None without step records."""
    if steps.is_empty():
        return None
    charges = charge_victims(steps, posts)
    culprits = rank_culprits(charges)
    nobody = charges.filter(pl.col("culprit") == NOBODY)
    decode_steps = steps.filter(pl.col("decoding") > 0)
    hand_overs = posts.filter(pl.col("name") == "post")["request_id"].n_unique()
    return {
        "decode_steps": decode_steps.height,
        "tokens": int(decode_steps["decoding"].sum()),
        "slowed_steps": charges.filter(pl.col("culprit") != NOBODY, pl.col("victims") > 0).select(STEP).n_unique(),
        "hand_overs": hand_overs,
        "culprits": culprits.filter(pl.col("delay_ns") > 0).height,
        "delay_ms": _ms(culprits["delay_ns"].sum()),
        "post_delay_ms": _ms(culprits["post_delay_ns"].sum()),
        "poll_delay_ms": _ms(culprits["poll_delay_ns"].sum()),
        "unattributed_delay_ms": _ms(nobody["delay_ns"].sum()),
        "delay_per_hand_over_ms": _ms(culprits["delay_ns"].sum() / max(1, hand_overs)),
        "top": [
            {"request_id": row["culprit"], "engine": row["engine"], "direction": row["direction"],
             "steps": row["steps"], "delay_ms": _ms(row["delay_ns"]), "post_delay_ms": _ms(row["post_delay_ns"])}
            for row in culprits.filter(pl.col("delay_ns") > 0).head(5).iter_rows(named=True)
        ],
        "submissions": [
            {"engine": row["engine"], "thread": row["thread"], "place": row["place"], "direction": row["direction"],
             "posts": row["posts"], "post_ms": _ms(row["post_ns"])}
            for row in locate_posts(posts, steps).iter_rows(named=True)
        ],
    }  # fmt: skip


def _ms(value: Any) -> float:
    return round(float(value) / 1e6, 6)

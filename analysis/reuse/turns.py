"""Requests -> turns of conversations: linked by the router's conversation id, else through the request read back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import stats

from ..segments import SEGMENTS

LEVEL = 0.95
MAX_FITTED = 1000
"""Turns behind a slope at most: it looks at every pair of them."""
GIVEN, DERIVED = "given", "derived"


def link_turns(requests: pl.DataFrame, routers: pl.DataFrame, decisions: pl.DataFrame) -> pl.DataFrame:
    """Link the requests of a run to conversations.

    requests: budgets (reuse columns included). routers: rows of sql/conversations.sql. decisions: rows of
    sql/decisions.sql. Returns one row per request in a conversation, in time order inside each, with conversation, link
    (given or derived), turn (from 0), begin, first, end (ns), gap_ns (since the turn before ended; NULL for the first),
    context (prompt tokens), reused (fetched from decode), cached (in P's own cache), computed, offered, reason, prefix
    (whether the prompt continues what was offered: yes, no, unknown), ttft,
    tpot_ns, engine_ns (prompt computation, first step and generation), generation_ns and seg_<segment>.
    """
    known = _join_router(requests, routers)
    named = _name_conversations(_join_decisions(known, decisions))
    return _number_turns(_measure(named))


def _join_decisions(requests: pl.DataFrame, decisions: pl.DataFrame) -> pl.DataFrame:
    """Add reason, peer, peer_id, saved and prefix: of the attempt that served, or of one that failed before it."""
    told = decisions.select(
        p_engine="engine",
        p_id="id",
        reason="reason",
        peer="peer",
        peer_id="peer_id",
        saved="fetch_tokens",
        prefix="prefix_match",
    ).unique(["p_engine", "p_id"], keep="last", maintain_order=True)
    joined = requests.join(told, on=["p_engine", "p_id"], how="left", maintain_order="left")
    if "tried_id" not in requests.columns:
        return joined
    before = told.rename({"p_id": "tried_id"})
    joined = joined.join(before, on=["p_engine", "tried_id"], how="left", suffix="_tried", maintain_order="left")
    return joined.with_columns(pl.coalesce(f"{name}_tried", name).alias(name) for name in told.columns[2:])


def _join_router(requests: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Add conversation_id, turn and offered: the n-th request of an identity is the router's n-th."""
    identity = ["r_trace", "r_key", "nth"]
    nth = pl.col("r_start").rank("ordinal").over("r_trace", "r_key")
    told = routers.with_columns(nth=nth).select(*identity, "conversation_id", "turn", "offered")
    return requests.with_columns(nth=nth).join(told, on=identity, how="left", maintain_order="left").drop("nth")


def _name_conversations(requests: pl.DataFrame) -> pl.DataFrame:
    """Add conversation and link; requests without either are left out.

    A request without a conversation id belongs to that of the request whose blocks it was offered, and so on back.
    """
    rows = requests.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    before = rows.select(peer="d_engine", peer_id="d_id", before="place").drop_nulls().unique(["peer", "peer_id"])
    rows = rows.join(before, on=["peer", "peer_id"], how="left", maintain_order="left")
    own = rows["conversation_id"].is_not_null().to_numpy()
    root = np.arange(rows.height)
    parent = rows["before"].fill_null(-1).to_numpy()
    linked = ~own & (parent >= 0) & (parent != root)
    root[linked] = parent[linked]
    # Each pass doubles how far back a request looks; a circle of broken ids ends it too.
    for _ in range(max(1, rows.height.bit_length())):
        further = root[root]
        if (further == root).all():
            break
        root = further
    rows = rows.with_columns(root=pl.Series(root))
    heads = rows.select(
        root="place", head=pl.coalesce("conversation_id", pl.concat_str(pl.lit("from "), "request_id")),
        is_head_given=pl.col("conversation_id").is_not_null(),
    )  # fmt: skip
    rows = rows.join(heads, on="root", how="left", maintain_order="left")
    several = pl.len().over("root") > 1
    link = (
        pl.when(pl.col("conversation_id").is_not_null()).then(pl.lit(GIVEN))
        .when(pl.col("is_head_given") | several).then(pl.lit(DERIVED))
    )  # fmt: skip
    return rows.with_columns(conversation="head", link=link).filter(pl.col("link").is_not_null())


def _measure(rows: pl.DataFrame) -> pl.DataFrame:
    end = pl.coalesce("r_end", "d_end")
    fetched = pl.when(pl.col("reason") == "fetched").then(pl.coalesce("rb_tokens", "saved"))
    reused = pl.when(pl.col("p_id").is_not_null()).then(fetched.fill_null(0))
    computing = pl.sum_horizontal(
        pl.col("seg_prefill_compute", "seg_first_decode"), pl.col("d_end") - pl.col("d_first")
    )
    return rows.with_columns(
        begin=pl.col("ttft_start"), first=pl.col("ttft_end"), end=end, context=pl.col("prompt_tokens"), reused=reused,
        cached=pl.col("cached_tokens"), generation_ns=end - pl.col("ttft_end"), engine_ns=computing,
    ).with_columns(computed=pl.col("context") - pl.col("reused") - pl.col("cached").fill_null(0))  # fmt: skip


def _number_turns(rows: pl.DataFrame) -> pl.DataFrame:
    ordered = rows.sort("begin", maintain_order=True)
    place = pl.int_range(pl.len()).over("conversation")
    numbered = ordered.with_columns(
        turn=pl.coalesce("turn", place), gap_ns=pl.col("begin") - pl.col("end").shift(1).over("conversation")
    )
    started = pl.col("begin").min().over("conversation")
    return numbered.sort(started, "conversation", "begin", "turn").select(
        "conversation", "link", "turn", "request_id", "p_engine", "d_engine", "begin", "first", "end", "gap_ns",
        "context", "reused", "cached", "computed", "offered", "reason", "prefix", "ttft", "tpot_ns", "engine_ns",
        "generation_ns", "residual", *(f"seg_{name}" for name in SEGMENTS),
    )  # fmt: skip


def sum_tasks(turns: pl.DataFrame) -> pl.DataFrame:
    """Sum each conversation as one task: completion time and what it consisted of, ns.

    completion = gaps + first_token + generation + rest: gaps are what tools and people took between turns; rest is
    what no turn tells of (a turn that failed, or turns that overlap: then below zero). engine is the part of
    first_token and generation in which an engine computed for it.
    """
    sums = turns.group_by("conversation", maintain_order=True).agg(
        link=pl.col("link").first(),
        turns=pl.len(),
        context=pl.col("context").max(),
        reused=pl.col("reused").sum(),
        cached=pl.col("cached").sum(),
        computed=pl.col("computed").sum(),
        completion_ns=pl.col("end").max() - pl.col("begin").min(),
        gaps_ns=pl.col("gap_ns").clip(lower_bound=0).sum(),
        first_token_ns=pl.col("ttft").sum(),
        generation_ns=pl.col("generation_ns").sum(),
        engine_ns=pl.col("engine_ns").sum(),
    )
    rest = pl.col("completion_ns") - pl.col("gaps_ns") - pl.col("first_token_ns") - pl.col("generation_ns")
    return sums.with_columns(rest_ns=rest)


GROWTH = ("ttft", "tpot_ns", "seg_prefill_compute", "seg_readback", "seg_prefill_queue", "gap_ns")


def grow(turns: pl.DataFrame) -> pl.DataFrame:
    """Summarize by turn number, over all conversations: medians of tokens and times (ns), TTFT's p90 too."""
    return (
        turns.group_by("turn")
        .agg(
            requests=pl.len(),
            **{name: pl.col(name).median() for name in ("context", "reused", "cached", "computed")},
            ttft_p90=pl.col("ttft").quantile(0.9, "linear"),
            **{name: pl.col(name).cast(pl.Float64).median() for name in GROWTH},
        )
        .sort("turn")
    )


@dataclass(frozen=True)
class Slope:
    """How the TTFT of later turns grows with their context, ms per 1,000 tokens, with its 95 % interval."""

    value: float
    low: float
    high: float


def fit_growth(turns: pl.DataFrame) -> Slope | None:
    """Fit the slope of TTFT over the context (Theil-Sen, Sen 1968); None when contexts don't differ.

    First turns have nothing to re-use and are another kind: they are left out where enough later ones remain.
    """
    known = turns.drop_nulls(["context", "ttft"])
    later = known.filter(pl.col("turn") > 0)
    known = later if later["context"].n_unique() > 1 else known
    if known["context"].n_unique() < 2 or known.height < 3:
        return None
    some = known.gather_every(-(-known.height // MAX_FITTED))
    fit = stats.theilslopes(some["ttft"].to_numpy() / 1e6, some["context"].to_numpy().astype(float), LEVEL)
    return Slope(*(float(value) * 1000 for value in (fit.slope, fit.low_slope, fit.high_slope)))

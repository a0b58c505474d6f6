"""Decisions -> counts by reason, what fetching and computing cost, regret, and how far the estimates were off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ..errors import KvlensError
from ..run import Run
from ..source import Session
from ..summary import describe
from .thresholds import FAILED, Curve, draw_curve

FETCHED = ("fetched",)
RECOMPUTED = ("below_threshold", "fetch_failed_recomputed", "expired", "remote_unknown")
SIDES = {"fetch": FETCHED, "recompute": RECOMPUTED}
WORST = 5


@dataclass(frozen=True)
class DecisionReport:
    """What is known of one run's decisions.

    decisions: rows of sql/decisions.sql. repeats: how many of them are of attempts that a router sent again without an
    offer, after the first one's fetch had failed the request. reasons: rows of count_reasons.
    mismatches: requests whose prompt is no prefix of what was offered. costs: side -> ms (describe), per token too.
    estimates: side -> error of the estimates. regret: summary of it, with the requests that lost most.
    """

    run: Run
    decisions: pl.DataFrame
    repeats: int
    reasons: pl.DataFrame
    mismatches: pl.DataFrame
    prefixes: dict[str, int]
    costs: dict[str, Any]
    estimates: dict[str, Any]
    regret: dict[str, Any]
    curve: Curve


def load_decisions(session: Session) -> pl.DataFrame:
    """Load a run's decisions. Raises KvlensError when there are none, with the reason that can be told."""
    decisions = session.query("decisions")
    if not decisions.is_empty():
        return decisions
    modes = session.query("milestones")["mode"].unique().to_list()
    if modes and set(modes) <= {"push"}:
        raise KvlensError(
            f"no decisions in {session.run.name}: push has none, its prefill engine reads nothing back",
            "record a bidirectional run: kvlens lab run --mode bidirectional --turns 4 --out RUN",
        )
    raise KvlensError(
        f"no decision spans in {session.run.name}",
        'set "bidirectional_kv_xfer": true (or use NixlBidirectionalConnector) on both engines, with this version of'
        " kvlens on the prefill engine, or record: kvlens lab run --mode bidirectional --turns 4 --out RUN",
    )


def report_decisions(session: Session) -> DecisionReport:
    """Report a run's decisions. Raises KvlensError when it has none."""
    return summarize_decisions(session.run, load_decisions(session))


def summarize_decisions(run: Run, decisions: pl.DataFrame) -> DecisionReport:
    """Summarize decisions."""
    first = drop_repeats(decisions)
    return DecisionReport(
        run=run,
        decisions=decisions,
        repeats=decisions.height - first.height,
        reasons=count_reasons(decisions),
        mismatches=find_mismatches(decisions),
        prefixes=count_prefixes(decisions),
        costs={side: describe_cost(decisions, side) for side in SIDES},
        estimates={side: judge_estimates(decisions, side) for side in SIDES},
        regret=sum_regret(decisions),
        curve=draw_curve(first),
    )


def drop_repeats(decisions: pl.DataFrame) -> pl.DataFrame:
    """Drop decisions of attempts that were sent again without an offer after a failed fetch: they are no requests."""
    ordered = decisions.sort("begin", maintain_order=True)
    before = pl.col("reason").shift(1).over("engine", "key")
    again = (pl.col("key") != "") & before.is_in(FAILED) & (pl.col("reason") == "no_remote_metadata")
    return ordered.filter(~again.fill_null(value=False))


def count_reasons(decisions: pl.DataFrame) -> pl.DataFrame:
    """Count decisions by engine, decision and reason, most frequent first."""
    lost = pl.col("regret_ns").clip(lower_bound=0)
    return (
        decisions.group_by("engine", "decision", "reason")
        .agg(
            requests=pl.len(),
            fetch_tokens=pl.col("fetch_tokens").median(),
            local_tokens=pl.col("local_tokens").median(),
            prompt_tokens=pl.col("prompt_tokens").median(),
            lost_ns=lost.sum(),
            past_expiry_s=(-pl.col("seconds_to_expiry").filter(pl.col("seconds_to_expiry") < 0)).median(),
        )
        .sort("engine", "requests", "reason", descending=[False, True, False])
    )


def count_prefixes(decisions: pl.DataFrame) -> dict[str, int]:
    """Count the verdicts on the prefix: yes, no, unknown, and none where nothing was offered."""
    named = decisions.select(
        match=pl.when(pl.col("prefix_match") == "").then(pl.lit("not offered")).otherwise("prefix_match")
    )
    return {str(name): int(count) for name, count in named["match"].value_counts().sort("match").iter_rows()}


def find_mismatches(decisions: pl.DataFrame) -> pl.DataFrame:
    """Find requests whose prompt is no prefix of the sequence that the decode engine holds, wrong KV fetched first."""
    wrong = decisions.filter(pl.col("prefix_match") == "no").with_columns(
        got_wrong_kv=pl.col("reason").is_in(FETCHED)
        & (pl.col("local_tokens").fill_null(0) + pl.col("fetch_tokens").fill_null(0) > 0)
    )
    return wrong.sort("got_wrong_kv", "finish", descending=[True, False]).select(
        "key", "id", "engine", "reason", "prefix_mismatch_block", "prefix_blocks", "fetch_tokens", "peer", "peer_id",
        "got_wrong_kv",
    )  # fmt: skip


def describe_cost(decisions: pl.DataFrame, side: str) -> dict[str, Any]:
    """Describe what one side took, ms, and per 1,000 tokens that it brought."""
    taken = decisions.filter(pl.col("reason").is_in(SIDES[side])).drop_nulls(f"{side}_ns")
    per_token = taken.filter(pl.col("fetch_tokens") > 0).select(
        cost=pl.col(f"{side}_ns") / pl.col("fetch_tokens") * 1000
    )
    return {"took_ms": describe(taken[f"{side}_ns"]), "per_1000_tokens_ms": describe(per_token["cost"])}


def judge_estimates(decisions: pl.DataFrame, side: str) -> dict[str, Any]:
    """Judge the estimates of a side where it was taken: signed and absolute error (ms, share), and coverage.

    Errors are measured less estimated. covered: share of the measured values inside the 10..90 % interval, 0.8 if the
    interval is honest.
    """
    taken = decisions.filter(pl.col("reason").is_in(SIDES[side])).drop_nulls([f"{side}_ns", f"{side}_estimate_ns"])
    offered = decisions.filter(pl.col("fetch_tokens") > 0)
    known = int(offered[f"{side}_estimate_ns"].is_not_null().sum())
    if taken.is_empty():
        return {"checked": 0, "known": known, "of": offered.height}
    error = taken[f"{side}_ns"] - taken[f"{side}_estimate_ns"]
    share = (error / taken[f"{side}_estimate_ns"]).abs()
    bounds = taken.drop_nulls([f"{side}_estimate_low_ns", f"{side}_estimate_high_ns"])
    inside = bounds[f"{side}_ns"].is_between(bounds[f"{side}_estimate_low_ns"], bounds[f"{side}_estimate_high_ns"])
    return {
        "checked": taken.height,
        "known": known,
        "of": offered.height,
        "error_ms": describe(error),
        "abs_error_ms": describe(error.abs()),
        "abs_error_share_p50": round(float(share.median() or 0.0), 4),  # type: ignore[arg-type]
        "covered": round(float(inside.mean()), 4) if bounds.height else None,  # type: ignore[arg-type]
    }


def sum_regret(decisions: pl.DataFrame) -> dict[str, Any]:
    """Sum what the chosen way lost against the estimate of the other one, and name who lost most."""
    known = decisions.drop_nulls("regret_ns")
    lost = known.filter(pl.col("regret_ns") > 0)
    won = known.filter(pl.col("regret_ns") < 0)
    worst = lost.sort("regret_ns", descending=True).head(WORST)
    return {
        "known": known.height,
        "of": decisions.height,
        "lost": lost.height,
        "lost_ms": round(float(lost["regret_ns"].sum()) / 1e6, 3),
        "won_ms": round(-float(won["regret_ns"].sum()) / 1e6, 3),
        "regret_ms": describe(known["regret_ns"]),
        "worst": [
            {"request": row["key"] or row["id"], "reason": row["reason"], "fetch_tokens": row["fetch_tokens"],
             "regret_ms": round(row["regret_ns"] / 1e6, 3)}
            for row in worst.iter_rows(named=True)
        ],
    }  # fmt: skip

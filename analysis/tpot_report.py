"""A run's TPOT report: session -> budgets per request, batch sizes, long gaps, culprits, threads; one plain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from instrumented_connectors.identity import request_key

from .errors import KvlensError
from .interference import charge_victims, locate_posts, rank_culprits, summarize_interference
from .run import Run
from .source import Session
from .token_times import join_tokens, read_tokens
from .tpot import bucket_batches, build_tpot, find_long_gaps, prepare_steps


@dataclass(frozen=True)
class TpotReport:
    """What is known of one run's decoding.

    requests: one row per request that decoded (build_tpot's columns, request_key, and the client's view).
    batches: rows of bucket_batches. gaps, bound_ns: find_long_gaps. culprits: rank_culprits.
    submissions: locate_posts. threads: rows of sql/threads.sql. writer: rows of sql/push_writer.sql.
    interference: summarize_interference. coverage: how many steps met their worker's half.
    """

    run: Run
    requests: pl.DataFrame
    batches: pl.DataFrame
    gaps: pl.DataFrame
    bound_ns: float
    culprits: pl.DataFrame
    submissions: pl.DataFrame
    threads: pl.DataFrame
    writer: pl.DataFrame
    interference: dict[str, Any] | None
    coverage: dict[str, int]


def load_steps(session: Session) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Load the steps (prepare_steps), who was in them, and the posts and wires of a run."""
    members = session.query("step_members")
    return prepare_steps(session.query("steps"), members), members, session.query("posts")


def find_interference(session: Session) -> dict[str, Any] | None:
    """Summarize what a run's hand-overs cost the requests that were decoding; None without step records."""
    rows = session.query("steps")
    if rows.is_empty():
        return None
    return summarize_interference(prepare_steps(rows, session.query("step_members")), session.query("posts"))


def report_tpot(session: Session, bound_ms: float | None = None) -> TpotReport:
    """Report a run's TPOT. Raises KvlensError when it has no step records or nobody decoded.

    bound_ms: inter-token gaps above it are long; twice the median when None.
    """
    steps, members, posts = load_steps(session)
    if steps.is_empty():
        raise KvlensError(
            f"no step records in {session.run.name}",
            "record with KVLENS_DETAIL=full (the default) and this version of kvlens on the decode engine",
        )
    requests = build_tpot(steps, members)
    if requests.is_empty():
        raise KvlensError(
            f"nobody decoded in {session.run.name}",
            "send requests with max_tokens above 1, and collect D's span files too",
        )
    keyed = requests.with_columns(request_key=pl.col("request_id").map_elements(request_key, return_dtype=pl.String))
    gaps, bound_ns = find_long_gaps(steps, None if bound_ms is None else bound_ms * 1e6)
    working = steps.filter(pl.col("requests") > 0)
    return TpotReport(
        run=session.run,
        requests=join_tokens(keyed, read_tokens(session.run.client_path)),
        batches=bucket_batches(steps),
        gaps=gaps,
        bound_ns=bound_ns,
        culprits=rank_culprits(charge_victims(steps, posts)),
        submissions=locate_posts(posts, steps),
        threads=session.query("threads"),
        writer=session.query("push_writer"),
        interference=summarize_interference(steps, posts),
        coverage={"steps": working.height, "without_worker": int(working["w_ranks"].is_null().sum())},
    )

"""A run's breakdown: session -> budgets, unfinished requests and summary, as one plain value for the renderers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from .attempts import join_router
from .budget import build_budgets
from .client import join_client, summarize_client
from .clocks.align import align_clocks
from .clocks.describe import describe_clocks
from .clocks.doubt import add_doubts, carry_doubts, drop_unknown
from .clocks.notifications import place_notifications, widen_landings
from .clocks.relation import Relation
from .errors import KvlensError
from .landing import estimate_landing
from .progress import add_progress
from .reasons import find_reasons
from .reuse.readback import join_readbacks
from .run import Run, read_client
from .source import Session
from .summary import add_bucket, summarize_modes
from .tpot_report import find_interference


@dataclass(frozen=True)
class Breakdown:
    """What is known of one run.

    budgets: one row per request with a first token (columns of build_budgets and more, ns).
    unfinished: one row per request that never got its last token.
    summary: plain dicts, the "summary" of the JSON document.
    relation: how the clocks of several boots stand to each other, for other stamps of the run; None with one boot.
    """

    run: Run
    budgets: pl.DataFrame
    unfinished: pl.DataFrame
    summary: dict[str, Any]
    relation: Relation | None = None


def break_down(session: Session) -> Breakdown:
    """Break a run down. Raises KvlensError when it holds no request, or one side of requests only."""
    health = session.query("health").row(0, named=True)
    check_sides(session.run, health)
    client, bad_client_lines = read_client(session.run.client_path)
    aligned = align_clocks(session)
    attempts = join_readbacks(join_router(aligned.engines, aligned.routers, aligned.single), session.query("readbacks"))
    aligned = aligned.leave_rows()
    attempts = add_doubts(aligned.correct_readbacks(attempts), aligned.relation)
    milestones = name_requests(add_bucket(attempts))
    requests = add_progress(widen_landings(estimate_landing(place_notifications(join_client(milestones, client)))))
    if requests.is_empty():
        raise KvlensError(
            f"no requests in {session.run.name}, though it has {health['used_spans']} kvlens spans",
            "send requests through the router or with kv_transfer_params; spans of handshakes alone tell of no request",
        )
    charged = carry_doubts(build_budgets(requests, aligned.handshakes))
    budgets = find_reasons(drop_unknown(charged))
    unfinished = requests.filter("is_unfinished")
    summary = {
        "requests": requests.height,
        "with_first_token": budgets.height,
        "unfinished": {"count": unfinished.height, "waiting_for": count_by(unfinished, "waiting_for")},
        "missing": count_by(requests.explode("missing").drop_nulls("missing"), "missing"),
        "siblings": int(requests["siblings"].sum()),
        "modes": summarize_modes(budgets),
        "client": summarize_client(budgets, client),
        "clocks": describe_clocks(aligned, unknown=charged.height - budgets.height),
        "interference": find_interference(session),
        "data": {
            "files": len(session.run.files),
            "lines": session.lines,
            "bad_lines": session.bad_lines,
            "bad_client_lines": bad_client_lines,
            **health,
        },
    }
    return Breakdown(session.run, budgets, unfinished, summary, aligned.relation)


def check_sides(run: Run, health: dict[str, Any]) -> None:
    """Refuse a run in which no request can have a TTFT: without a router, both engines must be heard."""
    if health["router_spans"] or (health["prefill_spans"] and health["decode_spans"]):
        return
    if not (health["prefill_spans"] or health["decode_spans"]):
        raise KvlensError(
            f"no requests in {run.name}: none of its {health['used_spans']} kvlens spans belongs to one",
            "send requests with kv_transfer_params through the router, then stop the engines cleanly",
        )
    there, lost = ("prefill", "decode") if health["prefill_spans"] else ("decode", "prefill")
    raise KvlensError(
        f"{run.name} has spans of the {there} side only: no router and no {lost} engine",
        f"load the connector on the {lost} engine too and collect its span files, or run the router with tracing",
    )


def name_requests(milestones: pl.DataFrame) -> pl.DataFrame:
    """Add request_id: the client-visible key where it is unique, else the engine's own id, else key#n."""
    key = pl.col("request_key")
    unique = (key.len().over("request_key") == 1) & (key != "")
    nth = pl.concat_str(key, pl.lit("#"), pl.int_range(1, pl.len() + 1).over("request_key"))
    return milestones.with_columns(request_id=pl.when(unique).then(key).otherwise(pl.coalesce("d_id", "p_id", nth)))


def count_by(frame: pl.DataFrame, column: str) -> dict[str, int]:
    """Count rows by the values of a column, most frequent first."""
    counts = frame.group_by(column).len().sort(["len", column], descending=[True, False])
    return {str(value): int(count) for value, count in counts.iter_rows()}

"""What a bidirectional run tells of its conversations: which turn follows which, and what P could have read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ..reuse.turns import link_turns
from ..source import Session
from .observations import NS
from .parameters import BIDIRECTIONAL, Source

NOT_OFFERED = ("no_remote_metadata", "incomplete_metadata", "nothing_to_fetch", "disabled", "aborted")
DEFAULT_THRESHOLD = 64
"""vLLM's kv_recompute_threshold."""
DEFAULT_RETENTION_S = 480.0
"""vLLM's decoder_kv_blocks_ttl."""


@dataclass(frozen=True)
class Reuse:
    """Conversations of a run.

    turns: a row per request that follows a turn: row, previous (row), gap (s), offered (tokens). limits: threshold and
    retention (s, None unknown), keyword arguments of Parameters. sources: where they come from.
    """

    turns: pl.DataFrame
    limits: dict[str, Any]
    sources: list[Source]


def observe_reuse(session: Session, requests: pl.DataFrame) -> Reuse | None:
    """Observe conversations; None where the run has no decisions."""
    decisions = session.query("decisions") if (requests["mode"] == BIDIRECTIONAL).any() else None
    if decisions is None or decisions.is_empty():
        return None
    turns = link_turns(requests, session.query("conversations"), decisions)
    limits, sources = _read_limits(session, decisions)
    return Reuse(link_rows(requests, turns, decisions), limits, sources)


def link_rows(requests: pl.DataFrame, turns: pl.DataFrame, decisions: pl.DataFrame) -> pl.DataFrame:
    """Join what link_turns found with the decisions: previous (row), gap (s after its last token), offered (tokens)."""
    known = requests.select(pl.col("row").cast(pl.Int64), "request_id", "p_engine", "p_id", "d_end", "ttft_start")
    offered = decisions.filter(~pl.col("reason").is_in(NOT_OFFERED)).select(
        p_engine="engine", p_id="id", offered=pl.col("fetch_tokens").fill_null(0)
    )
    ordered = turns.select("conversation", "request_id").join(known, on="request_id").sort("ttft_start")
    before = [pl.col(name).shift(1).over("conversation") for name in ("row", "d_end")]
    return (
        ordered.with_columns(previous=before[0], gap=(pl.col("ttft_start") - before[1]) * NS)
        .filter(pl.col("previous").is_not_null(), pl.col("gap") >= 0)  # turns that overlap do not wait for each other
        .join(offered.unique(["p_engine", "p_id"]), on=["p_engine", "p_id"], how="left")
        .select("row", "previous", "gap", pl.col("offered").fill_null(0))
    )


def _read_limits(session: Session, decisions: pl.DataFrame) -> tuple[dict[str, Any], list[Source]]:
    threshold = decisions["threshold"].drop_nulls().mode()
    ttl, origin = _find_retention(session)
    limits = {"threshold": int(threshold[0]) if len(threshold) else DEFAULT_THRESHOLD, "retention": ttl}
    words = f"{ttl:g} s" if ttl is not None else "unknown"
    return limits, [
        Source("threshold", f"{limits['threshold']} tokens", "the run's decisions" if len(threshold) else "assumed"),
        Source("retention", words, origin),
    ]


def _find_retention(session: Session) -> tuple[float | None, str]:
    """Seconds that D keeps blocks: as its leases say, else its manifest."""
    leases = session.query("leases").filter(pl.col("reason") == "awaiting_next_turn", pl.col("ttl_ns").is_not_null())
    if leases.height:
        return float(leases["ttl_ns"].mode()[0]) * NS, f"{leases.height} leases of the run"
    for engine in session.run.manifest.get("engines", []):
        extra = engine.get("connector", {}).get("kv_connector_extra_config")
        if engine.get("role") == "decode" and extra is not None:
            if "decoder_kv_blocks_ttl" in extra:
                return float(extra["decoder_kv_blocks_ttl"]), "manifest"
            return DEFAULT_RETENTION_S, "manifest, which leaves it at vLLM's default"
    return None, "neither leases nor manifest tell"

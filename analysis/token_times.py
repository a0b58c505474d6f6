"""The client's inter-token gaps beside the engine's TPOT: residual per request, and tokens that arrived together."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

TOKEN_SCHEMA = {
    "request_id": pl.String, "send_unix_ns": pl.Int64, "tokens": pl.Int64, "first_ns": pl.Int64, "last_ns": pl.Int64,
    "coalesced": pl.Int64, "longest_gap_ns": pl.Int64,
}  # fmt: skip


def read_tokens(path: Path | None) -> pl.DataFrame:
    """Read the times of every request's tokens from client.jsonl; damaged lines and failed requests are left out.

    coalesced: tokens that came in the same chunk as the one before, so that their own gap is unknown.
    """
    rows = []
    if path is not None:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                    stamps = record["token_unix_ns"]
                    if record.get("status") == "ok" and stamps:
                        rows.append(_describe(record, stamps))
                except (ValueError, KeyError, TypeError):
                    continue
    return pl.DataFrame(rows, schema=TOKEN_SCHEMA)


def _describe(record: dict[str, Any], stamps: list[int]) -> dict[str, Any]:
    gaps = [after - before for before, after in pairwise(stamps)]
    return {
        "request_id": record["request_id"], "send_unix_ns": record["send_unix_ns"], "tokens": len(stamps),
        "first_ns": stamps[0], "last_ns": stamps[-1], "coalesced": sum(gap == 0 for gap in gaps),
        "longest_gap_ns": max(gaps, default=0),
    }  # fmt: skip


def join_tokens(tpot: pl.DataFrame, tokens: pl.DataFrame) -> pl.DataFrame:
    """Add the client's view: client_tpot_ns, residual_ns (client less engine, per token), tokens, coalesced.

    tpot: rows of build_tpot with request_key. The n-th attempt of a key meets the client's n-th record of that id. A
    request whose number of tokens differs (an attempt that was cut off) has no residual. Coalescing moves single gaps,
    not their sum, so the residual is over the whole request.
    """
    nth = tokens.with_columns(
        nth=pl.col("send_unix_ns").rank("ordinal").over("request_id"), request_key=pl.col("request_id")
    ).drop("request_id")
    numbered = tpot.with_columns(nth=pl.col("first_end").rank("ordinal").over("request_key"))
    joined = numbered.join(nth, on=["request_key", "nth"], how="left", maintain_order="left").drop("nth")
    whole = pl.when(pl.col("tokens") == pl.col("intervals") + 1).then(
        (pl.col("last_ns") - pl.col("first_ns")) / pl.col("intervals")
    )
    return joined.with_columns(client_tpot_ns=whole).with_columns(
        residual_ns=pl.col("client_tpot_ns") - pl.col("tpot_ns")
    )

"""The client's own figures beside the budgets: what another process measured of the same requests."""

from __future__ import annotations

from typing import Any

import polars as pl

from .summary import describe


def join_client(requests: pl.DataFrame, client: pl.DataFrame) -> pl.DataFrame:
    """Add client_ttft (ns): the n-th attempt of a key meets the client's n-th record of that X-Request-Id."""
    if client.is_empty():
        return requests.with_columns(client_ttft=pl.lit(None, pl.Int64))
    measured = client.select(
        request_key="request_id",
        client_ttft=pl.col("first_byte_unix_ns") - pl.col("send_unix_ns"),
        nth=pl.col("send_unix_ns").rank("ordinal").over("request_id"),
    ).filter(pl.col("nth").is_not_null())
    numbered = requests.with_columns(nth=pl.col("begun").rank("ordinal").over("request_key"))
    return numbered.join(measured, on=["request_key", "nth"], how="left", maintain_order="left").drop("nth")


def summarize_client(budgets: pl.DataFrame, client: pl.DataFrame) -> dict[str, Any] | None:
    """Summarize the client's view: its TTFT, and what the segments leave of it unexplained (ms); None without a client.

    residual_ms is the client's TTFT less the sum of the segments, signed; abs_residual_ms is its size.
    """
    known = client.filter(~pl.col("request_id").str.starts_with("warmup-"))
    if known.is_empty():
        return None
    residual = (budgets["client_ttft"] - (budgets["ttft"] - budgets["residual"])).drop_nulls()
    return {
        "requests": known.height,
        "ok": int((known["status"] == "ok").sum()),
        "matched": residual.len(),
        "ttft_ms": describe(known["first_byte_unix_ns"] - known["send_unix_ns"]),
        "residual_ms": describe(residual),
        "abs_residual_ms": describe(residual.abs()),
    }

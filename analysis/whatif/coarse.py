"""Step costs of a run without step records (KVLENS_DETAIL=request, a foreign trace): whole requests stand for steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from .observations import NS


def list_coarse_prefills(requests: pl.DataFrame) -> pl.DataFrame:
    """Take each prompt's computation as one step that held nothing else: too long where several shared a step."""
    fresh = pl.col("prompt_tokens") - pl.sum_horizontal(pl.col("cached_tokens", "rb_tokens").fill_null(0))
    known = requests.drop_nulls(["p_id", "p_sched", "p_end", "prompt_tokens"]).filter(
        pl.col("p_end") > pl.col("p_sched")
    )
    return known.select(
        begin="p_sched", finish="p_end", tokens=fresh.clip(1), pairs=(fresh.clip(1) * pl.col("prompt_tokens")) / 2.0,
        ids=pl.concat_list("p_id"), parts=pl.concat_list(fresh.clip(1)),
        seconds=(pl.col("p_end") - pl.col("p_sched")) * NS, overlap=pl.lit(0.0),
    )  # fmt: skip


def list_coarse_decodes(requests: pl.DataFrame) -> pl.DataFrame:
    """Take each request's time per token as one step, with as many requests as its engine decoded half-way."""
    known = requests.drop_nulls(["d_first", "d_end", "tpot_ns", "prompt_tokens"]).filter(pl.col("tpot_ns") > 0)
    parts = [_count_beside(rows) for _, rows in known.group_by("d_engine", maintain_order=True)]
    if not parts:
        return known.select(seconds=pl.lit(0.0), overlap=pl.lit(0.0)).clear()
    rows = pl.concat(parts)
    return rows.select(
        begin="d_first", finish="d_end", sequences="sequences", context=pl.col("prompt_tokens") * pl.col("sequences"),
        gap=pl.lit(0.0), seconds=pl.col("tpot_ns") * NS, overlap=pl.lit(0.0),
    )  # fmt: skip


def _count_beside(rows: pl.DataFrame) -> pl.DataFrame:
    first, last = np.sort(rows["d_first"].to_numpy()), np.sort(rows["d_end"].to_numpy())
    middle = ((rows["d_first"] + rows["d_end"]) // 2).to_numpy()
    count = np.searchsorted(first, middle, side="right") - np.searchsorted(last, middle, side="right")
    return rows.with_columns(sequences=pl.Series(np.maximum(count, 1), dtype=pl.Int64))

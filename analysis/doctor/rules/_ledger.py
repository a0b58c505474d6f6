"""Requests with the lease that P (or whoever kept blocks) had for them."""

from __future__ import annotations

import polars as pl

from ..facts import Facts


def join_leases(facts: Facts) -> pl.DataFrame:
    """Requests whose prefill side kept blocks, with outcome, blocks, lease_end, held_ns and touched.

    touched: some transfer of these blocks was posted, or a reader's notification ended the lease.
    """
    leases = (
        facts.spans("lease")
        .filter(pl.col("reason").is_in(["", "finished_awaiting_transfer"]))
        .sort("finish")
        .unique(["engine", "id"], keep="last", maintain_order=True)
        .select("engine", "id", "outcome", "blocks", lease_end="finish", held_ns=pl.col("finish") - pl.col("begin"))
    )
    moves = facts.spans("post", "wire")
    posted = moves.filter(pl.col("direction") == "WRITE")["id"]
    read = moves.filter(pl.col("direction") == "READ")["peer_id"]
    used = pl.concat([posted, read]).unique()
    touched = pl.col("id").is_in(used.implode()) | pl.col("outcome").is_in(["read", "sent"])
    return facts.requests.join(
        leases.with_columns(touched=touched), left_on=["p_engine", "p_id"], right_on=["engine", "id"], how="inner"
    )

"""Holdings -> the lease ledger: blocks, block-seconds and GB-seconds by engine and reason, used and wasted, balance."""

from __future__ import annotations

from typing import Any

import polars as pl

NS_PER_S = 1e9
RUNNING = "running"
OPEN = "unknown"
"""Outcome of what was still held when the engine ended."""
DECLINED = "declined"
"""Outcome of blocks that were kept for a next turn which came and did not read them: its refusal frees them, too."""
USED, WASTED = ("read", "sent", "received"), ("expired", "aborted", DECLINED)
REASONS = {
    "finished_awaiting_transfer": "prompt done, the decode engine has not read it yet",
    "awaiting_next_turn": "decode engine keeps a turn for the next one's readback",
    "reserved_awaiting_write": "push: allocated on decode before the write came",
    "reserved_awaiting_read": "allocated until its read is done: decode in pull, prefill in a readback",
    "aborted_awaiting_receive": "the request ended while its receive was in flight",
    RUNNING: "requests while they run",
}


UNHEARD = "unheard"
"""Outcome of a lease of which no span came: its engine was killed, or lost spans."""
WELL = ("finished_length_capped", "finished_stopped")
KEPT_BY = {"prefill": "finished_awaiting_transfer", "decode": "awaiting_next_turn"}


def add_unheard(holdings: pl.DataFrame, engines: pl.DataFrame) -> pl.DataFrame:
    """Add the leases that must have been and of which no span came, held until their engine was last heard.

    vLLM keeps the blocks of a prompt that ended well for the decode engine, and in bidirectional mode those of a turn
    for the next one. An engine that is killed never tells of those that it still held. Their time to live may end them
    earlier.

    engines: rows of sql/engines.sql.
    """
    leases = holdings.filter(pl.col("reason") != RUNNING)
    ttl = leases.group_by("engine", "reason").agg(ttl=pl.col("ttl_ns").median().cast(pl.Int64))
    reads_back = engines.filter(pl.col("mode") == "bidirectional")["engine"].to_list()
    reads_back += leases.filter(pl.col("reason") == KEPT_BY["decode"])["engine"].to_list()
    # A decode engine keeps nothing of a request that came without a prefill engine's parameters.
    turns = (pl.col("role") == "decode") & pl.col("engine").is_in(reads_back) & (pl.col("has_peer") != 0)
    keeps = (pl.col("role") == "prefill") | turns
    missing = (
        holdings.filter((pl.col("reason") == RUNNING) & pl.col("finish_reason").is_in(WELL) & keeps)
        .with_columns(reason=pl.col("role").replace_strict(KEPT_BY, default=""))
        .join(leases.select("engine", "id", "reason"), on=["engine", "id", "reason"], how="anti")
        .join(engines.select("engine", "last_heard"), on="engine", how="left")
        .join(ttl, on=["engine", "reason"], how="left")
        .with_columns(begin="finish", outcome=pl.lit(UNHEARD), bytes=pl.lit(None, pl.Int64))
    )
    held = pl.min_horizontal(pl.col("last_heard") - pl.col("begin"), "ttl").clip(lower_bound=0)
    missing = missing.with_columns(finish=pl.col("begin") + held, block_ns=pl.col("blocks") * held, ttl_ns="ttl")
    return pl.concat([holdings, missing.select(holdings.columns)], how="vertical_relaxed")


def mark_declined(holdings: pl.DataFrame, decisions: pl.DataFrame) -> pl.DataFrame:
    """Mark the blocks kept for a next turn that were given back unread, as the turn computed or had its prompt itself.

    The holder can't tell that from a read: it gets the same notification. decisions: rows of sql/decisions.sql.
    """
    refused = (
        decisions.filter((pl.col("reason") != "fetched") & (pl.col("decision") != "fetch") & (pl.col("peer_id") != ""))
        .select(engine="peer", id="peer_id", refused=pl.lit(value=True))
        .unique(["engine", "id"])
    )
    kept = pl.col("reason") == KEPT_BY["decode"]
    is_refused = kept & pl.col("refused").fill_null(value=False) & (pl.col("outcome") == "read")
    return (
        holdings.join(refused, on=["engine", "id"], how="left", maintain_order="left")
        .with_columns(outcome=pl.when(is_refused).then(pl.lit(DECLINED)).otherwise("outcome"))
        .drop("refused")
    )


def classify(holdings: pl.DataFrame) -> pl.DataFrame:
    """Add fate (used, wasted, open, unclear, running), held_ns, byte_ns and age_ns (at the read; NULL where none was).

    An end whose cause was not seen (`released`) counts as used when a transfer of the blocks was seen. Ages come from
    the reader's own spans where it shares the clock, else from the end of the lease.
    """
    # ClickHouse has its truth values as numbers.
    holdings = holdings.with_columns(pl.col("same_clock", "is_warmup").cast(pl.Boolean).fill_null(value=False))
    outcome, read = pl.col("outcome"), pl.col("read_begin").is_not_null()
    reserved = pl.col("reason").str.starts_with("reserved_")
    fate = (
        pl.when(pl.col("reason") == RUNNING).then(pl.lit(RUNNING))
        .when(outcome.is_in([OPEN, UNHEARD])).then(pl.lit("open"))
        .when(outcome.is_in(WASTED) | (pl.col("reason") == "aborted_awaiting_receive")).then(pl.lit("wasted"))
        .when(outcome.is_in(USED) | read).then(pl.lit("used"))
        .otherwise(pl.lit("unclear"))
    )  # fmt: skip
    held = pl.col("finish") - pl.col("begin")
    seen = pl.when("same_clock").then(pl.col("read_begin") - pl.col("begin")).clip(lower_bound=0)
    age = pl.when(fate == "used").then(pl.coalesce(pl.when(~reserved).then(seen), held))
    per_block = pl.col("bytes") / pl.col("blocks")
    return holdings.with_columns(
        fate=fate, held_ns=held, age_ns=age, byte_ns=pl.col("block_ns") * pl.when(pl.col("blocks") > 0).then(per_block)
    )


def sum_ledger(classified: pl.DataFrame) -> pl.DataFrame:
    """Sum the ledger by engine and reason, warm-ups left out.

    Returns engine, role, reason, leases, blocks, block_s, gb_s (NULL where bytes are unknown), <fate>_block_s and
    <fate>_gb_s of used, wasted, open and unclear, age_p50_s, age_p99_s (at the read), heartbeats, late_reads (landed
    after the lease had expired) and one column per outcome that occurs, outcome_<name>.
    """
    rows = classified.filter(~pl.col("is_warmup"))
    known = pl.col("byte_ns").is_not_null().any()
    sums: dict[str, pl.Expr] = {}
    for fate in ("used", "wasted", "open", "unclear"):
        own = pl.col("fate") == fate
        sums[f"{fate}_block_s"] = pl.col("block_ns").filter(own).sum() / NS_PER_S
        sums[f"{fate}_gb_s"] = pl.when(known).then(pl.col("byte_ns").filter(own).sum() / NS_PER_S / 1e9)
    leases = pl.col("reason") != RUNNING
    outcomes = sorted({*rows.filter(leases)["outcome"]} - {""})
    counts = {f"outcome_{name}": (pl.col("outcome") == name).sum() for name in outcomes}
    age = pl.col("age_ns").filter(leases)
    order = {name: place for place, name in enumerate(REASONS)}
    return (
        rows.group_by("engine", "role", "reason")
        .agg(
            leases=pl.len(),
            blocks=pl.col("blocks").sum(),
            block_s=pl.col("block_ns").sum() / NS_PER_S,
            gb_s=pl.when(known).then(pl.col("byte_ns").sum() / NS_PER_S / 1e9),
            **sums,
            age_p50_s=age.quantile(0.5, "linear") / NS_PER_S,
            age_p99_s=age.quantile(0.99, "linear") / NS_PER_S,
            heartbeats=pl.col("heartbeats").fill_null(0).sum(),
            late_reads=(
                (pl.col("outcome") == "expired") & pl.col("same_clock") & (pl.col("read_end") > pl.col("finish"))
            ).sum(),
            **counts,
        )
        .sort("engine", pl.col("reason").replace_strict(order, default=len(order), return_dtype=pl.Int64))
    )


def balance(classified: pl.DataFrame) -> list[dict[str, Any]]:
    """Balance every engine: blocks taken by leases, released, and still held at its end, which are listed.

    unheard: those of the open ones that no span told of (the engine was killed, or spans were lost): what is known of
    them is worked out from their requests. Warm-ups count, as their blocks are blocks.
    """
    found = []
    for (engine,), rows in sorted(classified.partition_by("engine", as_dict=True).items()):
        leases = rows.filter(pl.col("reason") != RUNNING)
        still = leases.filter(pl.col("fate") == "open")
        taken, kept = int(leases["blocks"].sum()), int(still["blocks"].sum())
        found.append({
            "engine": engine, "leases": leases.height, "taken": taken, "released": taken - kept, "open": kept,
            "balanced": kept == 0, "unheard": still.filter(pl.col("outcome") == UNHEARD).height,
            "held": still.select(
                "id", "key", "reason", "outcome", "blocks", held_s=pl.col("held_ns") / NS_PER_S
            ).to_dicts(),
        })  # fmt: skip
    return found

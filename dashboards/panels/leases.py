"""Panels of blocks that are kept for somebody, and how that ends."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import gauge, quantile, raw_rate, recorded, recorded_fleet, total
from .make import Panel, make_graph, make_list


def held_blocks(config: Config) -> Panel:
    return make_graph(
        config, "Held blocks by reason",
        "Memory that new requests can't use. A saw-tooth is normal, a staircase is a leak.",
        [(total("reason", gauge(config, table.HELD_BLOCKS)), "{{reason}}")], "none", stacked=True,
    )  # fmt: skip


def held_requests(config: Config) -> Panel:
    return make_graph(
        config, "Requests whose blocks are held", "Beside the blocks: few requests with many blocks are long prompts.",
        [(total("reason", gauge(config, table.HELD_REQUESTS)), "{{reason}}")], "none",
    )  # fmt: skip


def oldest_held(config: Config) -> Panel:
    return make_graph(
        config, "Oldest held, by reason",
        "awaiting_transfer near the lease: nobody comes for the blocks. awaiting_arrival "
        "above seconds: KV may never come, see the runbook of stuck waits.",
        [(f"max by (reason) ({gauge(config, table.OLDEST_HELD)})", "{{reason}}")], "s",
        limits=[(config.lease_seconds, "yellow"), (2 * config.lease_seconds, "red")],
    )  # fmt: skip


def holders(config: Config) -> Panel:
    blocks = total("engine_id, role, reason", gauge(config, table.HELD_BLOCKS))
    return make_list(
        config, "Engines that hold most", "The engine to look at or to drain.", f"topk(20, {blocks} > 0)", "none",
    )  # fmt: skip


def lease_ends(config: Config) -> Panel:
    ends = recorded(config, table.LEASE_SECONDS, suffix="_count")
    return make_graph(
        config, "How leases end",
        "read or sent is healthy. expired on prefill: blocks were given away unread, a late reader gets other KV; on "
        "decode: no next turn came in time. released: end seen, cause not.",
        [(total("role, outcome", ends), "{{role}} {{outcome}}")], "ops",
    )  # fmt: skip


def lease_length(config: Config) -> Panel:
    buckets = recorded_fleet(config, table.LEASE_SECONDS)
    return make_graph(
        config, "p99 of how long blocks are kept", "Close to the lease: the next slow moment makes them expire.",
        [(quantile(0.99, "outcome", buckets), "{{outcome}}")], "s", limits=[(config.lease_seconds, "red")],
    )  # fmt: skip


def decisions(config: Config) -> Panel:
    return make_graph(
        config, "Fetch or recompute, by reason",
        "Bidirectional only. expired: turns come after decoder_kv_blocks_ttl; with kv_load_failure_policy fail they "
        "end with HTTP 500. no_remote_metadata is normal for first turns only.",
        [(total("reason", raw_rate(config, table.DECISIONS)), "{{reason}}")], "reqps",
    )  # fmt: skip


def invalid_offers(config: Config) -> Panel:
    return make_graph(
        config, "Offers with something wrong, by reason",
        "prefix_mismatch: history was edited or reasoning stripped, the fetch returns wrong KV with HTTP 200. Others: "
        "a router that loses or mixes up transfer parameters.",
        [(total("reason", raw_rate(config, table.VALIDATIONS)), "{{reason}}")], "reqps",
    )  # fmt: skip


def retained(config: Config) -> Panel:
    kept = gauge(config, table.HELD_BLOCKS, 'reason="awaiting_next_turn"')
    return make_graph(
        config, "Blocks kept for a next turn",
        "Memory that decode engines bet on a next turn. High beside a full cache: shorten "
        "decoder_kv_blocks_ttl.",
        [(f"topk(10, {total('engine_id', kept)})", "{{engine_id}}")], "none",
    )  # fmt: skip


def oldest_retained(config: Config) -> Panel:
    oldest = gauge(config, table.OLDEST_HELD, 'reason="awaiting_next_turn"')
    return make_graph(
        config, "Oldest kept for a next turn",
        "Flat at the retention (480 s as shipped): turns come later than that or never.",
        [(f"topk(10, max by (engine_id) ({oldest}))", "{{engine_id}}")], "s",
    )  # fmt: skip

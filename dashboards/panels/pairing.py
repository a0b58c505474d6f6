"""Panels of the meeting of P and D: pairing in push, parameters, waits for remote KV."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import gauge, quantile, raw_rate, recorded, recorded_fleet, total
from .make import Panel, make_graph


def late_side(config: Config) -> Panel:
    count = recorded(config, table.PAIRING_LATENESS, suffix="_count")
    return make_graph(
        config, "Late side of pairings",
        "Push: which side came second. Decode at 100 %: the router runs the legs in turn; "
        "send both at once.",
        [(f"{total('side', count)} / on () group_left () ({total('', count)} > 0)", "{{side}} late")], "percentunit",
        stacked=True,
    )  # fmt: skip


def lateness(config: Config) -> Panel:
    return make_graph(
        config, "p99 of how late the second side was",
        "Prefill late is healthy: D waits for compute. Decode late by more "
        "than 50 ms costs every request that much TTFT.",
        [(quantile(0.99, "side", recorded_fleet(config, table.PAIRING_LATENESS)), "{{side}}")], "s",
    )  # fmt: skip


def pairings(config: Config) -> Panel:
    return make_graph(
        config, "Pairings by outcome", "Unpaired: D never registered, or the legs carry different request ids.",
        [(total("outcome", raw_rate(config, table.PAIRINGS)), "{{outcome}}")], "ops",
    )  # fmt: skip


def push_waiting(config: Config) -> Panel:
    return make_graph(
        config, "At the push writer", "Blocks wait for D's registration, registrations for P's compute. Both high: the "
        "writer is stalled.",
        [(total("waiting", gauge(config, table.PUSH_WAITING)), "{{waiting}}")], "none",
    )  # fmt: skip


def push_oldest(config: Config) -> Panel:
    series = gauge(config, table.PUSH_OLDEST)
    return make_graph(
        config, "Oldest at the push writer", "Both beyond the limit on one engine: restart it after draining.",
        [(f"max by (engine_id, waiting) ({series})", "{{engine_id}} {{waiting}}")], "s",
        limits=[(config.writer_seconds, "red")],
    )  # fmt: skip


def remote_missing(config: Config) -> Panel:
    return make_graph(
        config, "Expected remote, got none",
        "Requests whose transfer parameters got lost: they are prefilled again. Anything "
        "above zero: check what the router forwards.",
        [(total("engine_id", raw_rate(config, table.EXPECTED_REMOTE_MISSING)), "{{engine_id}}")], "reqps",
    )  # fmt: skip


def remote_loads(config: Config) -> Panel:
    return make_graph(
        config, "Waits for remote KV by outcome", "Failed ones are computed again or fail the request, as "
        "kv_load_failure_policy says.",
        [(total("outcome", raw_rate(config, table.REMOTE_LOADS)), "{{outcome}}")], "reqps",
    )  # fmt: skip

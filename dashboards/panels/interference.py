"""Panels of time per token: which steps were slow because of transfers."""

from __future__ import annotations

from ..config import Config
from ..queries import braces, quantile
from ..sql import connector_sql, slow_steps_sql, threads_sql
from .make import Panel, make_graph, make_sql_graph, make_sql_table


def token_latency(config: Config) -> Panel:
    series = f"vllm:inter_token_latency_seconds_bucket{braces(config.selectors)}"
    buckets = f"rate({series}[$__rate_interval])"
    return make_graph(
        config, "Time between tokens",
        "vLLM's own measure. A tail that grows with transfers is interference: see the steps.",
        [(quantile(q, "", buckets), f"p{q * 100:g}") for q in (0.5, 0.99)], "s",
    )  # fmt: skip


def connector_share(config: Config) -> Panel:
    return make_sql_graph(
        config, "Connector's share of decode steps",
        "Time of the engine's thread in posts, polls and metadata. Above a few per "
        "cent: every decoding request pays. Push moves posts off the decode engine.",
        connector_sql(config), "percentunit",
    )  # fmt: skip


def slow_steps(config: Config) -> Panel:
    return make_sql_table(
        config, "Slow steps", "Steps slower than twice the median, with the part that grew. post or poll: transfers. "
        "execution: prefill in the same step, or a core that others use. gap: between two steps, the engine loop. "
        "preemption: memory.",
        slow_steps_sql(config), units={"ms": "ms", "bound_ms": "ms", "submit_ms": "ms", "poll_ms": "ms"},
    )  # fmt: skip


def threads(config: Config) -> Panel:
    return make_sql_table(
        config, "CPU by thread",
        "Moved work is not free: the push writer and NIXL's progress thread take cores too. wait: ready "
        "to run without a core.",
        threads_sql(config), units={"cores": "none", "wait_share": "percentunit"},
    )  # fmt: skip

"""Panels of the hand-over as a whole: where time goes, by class, segment, mode and engine."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import braces, identify, mean, quantile, recorded, recorded_fleet, share, total
from .make import Panel, make_graph, make_list, make_number

TTFT = table.TIME_TO_FIRST_TOKEN

# As in `kvlens report`: Okabe and Ito's, which colour-blind readers tell apart.
CLASS_COLOURS = {
    table.COMPUTE: "#009E73",
    table.QUEUE: "#E69F00",
    table.COORDINATION: "#CC79A7",
    table.TRANSFER: "#56B4E9",
    table.UNATTRIBUTED: "#8C8C8C",
}


_FIRING = 'ALERTS{alertname=~"Kvlens.*", alertstate="firing", cluster=~"$cluster"}'

_BY_PLACE = "max by (alertname, severity, mode, engine_id, peer, instance, device)"


def traced_buckets(config: Config, metric: table.Metric, *matchers: str) -> str:
    """Return bucket rates of `kvlens metrics`, whose exemplars lead to traces."""
    name = f"{config.prefix}traced_{metric.name.removeprefix(table.PREFIX)}_bucket"
    selectors = braces('cluster=~"$cluster", namespace=~"$namespace"', *matchers)
    return f"rate({name}{selectors}[$__rate_interval])"


def firing_alerts(config: Config) -> Panel:
    return make_number(
        config, "Alerts", "kvlens alerts that fire now; beside this, which ones.",
        f"count({_BY_PLACE} ({_FIRING})) or vector(0)", "none", limits=[(1, "red")],
    )  # fmt: skip


def firing_list(config: Config) -> Panel:
    return make_list(
        config, "Which alerts, and where", "Click an alert: its runbook says how to confirm it and what to change.",
        f"{_BY_PLACE} ({_FIRING})", "none",
        hidden=("Value",), links={"alertname": f"{config.runbook_url}/${{__value.raw}}.md"},
    )  # fmt: skip


def coordination_now(config: Config) -> Panel:
    return make_number(
        config, "Coordination share", "Share of the hand-over's seconds spent waiting for messages, pairing, dispatch "
        "and polls. Above the limit: open Incident breakdown and see which segment grew.",
        share(config, "coordination"), "percentunit",
        limits=[(config.coordination_share / 2, "yellow"), (config.coordination_share, "red")], decimals=1,
    )  # fmt: skip


def ttft_now(config: Config) -> Panel:
    return make_number(
        config, "TTFT p99",
        "Request at the router until its first token was written. Needs `kvlens metrics` beside the "
        "router. Compare it with the classes on this page: what they don't explain is outside the engines.",
        quantile(0.99, "", traced_buckets(config, TTFT)), "s",
    )  # fmt: skip


def requests_now(config: Config) -> Panel:
    return make_number(
        config, "Requests per second", "Requests that ended on decode engines.",
        total("", recorded(config, table.REQUESTS, 'side="decode"')), "reqps",
    )  # fmt: skip


def ttft(config: Config) -> Panel:
    buckets = traced_buckets(config, TTFT)
    return make_graph(
        config, "Time to first token at the router", "Dots are requests: click one to open its trace.",
        [(quantile(q, "mode", buckets), f"p{q * 100:g} {{{{mode}}}}") for q in (0.5, 0.99)], "s", exemplars=True,
    )  # fmt: skip


def class_seconds(config: Config) -> Panel:
    requests = total("", recorded(config, table.REQUESTS, 'side="decode"'))
    parts = total("class", recorded(config, table.HANDOVER_SECONDS))
    return make_graph(
        config, "Seconds per request by class",
        "Queue: too little capacity. Compute: prefill itself. Coordination: waiting "
        "between engines. Transfer: bytes on the wire. The largest one is where to look first.",
        [(f"{parts} / on () group_left () ({requests} > 0)", "{{class}}")], "s", stacked=True, colours=CLASS_COLOURS,
    )  # fmt: skip


def class_share_by_mode(config: Config) -> Panel:
    limit = config.coordination_share
    return make_graph(
        config, "Coordination share by mode", "Push, pull and bidirectional side by side. One mode alone high: its own "
        "protocol (pairing, router round trip). All of them: engines or hosts are busy.",
        [(share(config, "coordination", "mode"), "{{mode}}")], "percentunit", limits=[(limit, "red")],
    )  # fmt: skip


def coordination_by_engine(config: Config) -> Panel:
    return make_graph(
        config, "Coordination share by engine, ten highest", "One engine above its sisters: drain it. All alike: the "
        "router or the mode.",
        [(f"topk(10, {share(config, 'coordination', 'engine_id, role')})", "{{engine_id}} {{role}}")],
        "percentunit", limits=[(config.coordination_share, "red")],
    )  # fmt: skip


def segment_means(config: Config) -> Panel:
    return make_graph(
        config, "Mean of segments",
        "The longest line that is not compute names the cause. Segments overlap between the two "
        "engines, so they are not stacked.",
        [(mean(config, table.SEGMENT_SECONDS, "segment"), "{{segment}}")], "s",
    )  # fmt: skip


def segment_tails(config: Config) -> Panel:
    return make_graph(
        config, "p99 of segments",
        "Over the fleet (not by engine). A high tail with a normal mean is a few requests: open "
        "one from the exemplars.",
        [(quantile(0.99, "segment", recorded_fleet(config, table.SEGMENT_SECONDS)), "{{segment}}")], "s",
    )  # fmt: skip


def traced_segments(config: Config) -> Panel:
    buckets = traced_buckets(config, table.SEGMENT_SECONDS)
    return make_graph(
        config, "p99 of segments with example requests",
        "From `kvlens metrics`. Dots are requests: click one that is high.",
        [(quantile(0.99, "segment", buckets), "{{segment}}")], "s", exemplars=True,
    )  # fmt: skip


def requests(config: Config) -> Panel:
    return make_graph(
        config, "Requests by side and final status",
        "Aborted ones on one side only: the other side keeps blocks for nothing.",
        [(total("side, status", recorded(config, table.REQUESTS)), "{{side}} {{status}}")], "reqps",
    )  # fmt: skip


def waiting(config: Config) -> Panel:
    series = identify(config, f"vllm:num_requests_waiting{braces(config.selectors)}",
                      'role=~"$role", engine_id=~"$engine"')  # fmt: skip
    return make_graph(
        config, "Requests waiting, ten fullest engines",
        "Queues on P: add prefill engines. Queues on D: add decode engines.",
        [(f"topk(10, {total('engine_id, role', series)})", "{{engine_id}} {{role}}")], "none",
    )  # fmt: skip


def cache_usage(config: Config) -> Panel:
    series = identify(config, f"vllm:kv_cache_usage_perc{braces(config.selectors)}",
                      'role=~"$role", engine_id=~"$engine"')  # fmt: skip
    return make_graph(
        config, "KV cache used, ten fullest engines",
        "A full D makes decode_admission long; a full P makes prefill_queue long.",
        [(f"topk(10, max by (engine_id, role) ({series}))", "{{engine_id}} {{role}}")], "percentunit",
        limits=[(0.9, "red")],
    )  # fmt: skip

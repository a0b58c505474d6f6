"""Panels that compare now with an earlier time: what differs, by segment, engine and pair."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import mean, pair_rate, recorded, total
from .make import Panel, make_graph, make_list, make_sql_table
from .request import MILLISECONDS, slowest_sql

BASELINE = "$baseline"


def _change(now: str, before: str) -> str:
    return f"({now}) - ({before})"


def segments_changed(config: Config) -> Panel:
    now, before = (mean(config, table.SEGMENT_SECONDS, "segment", offset=offset) for offset in ("", BASELINE))
    return make_list(
        config, "Segments that grew",
        "Mean now less mean then, largest first. The first row is the cause, unless it is "
        "remote_wait: that contains the ones below it.",
        _change(now, before), "s", limits=[(0.01, "yellow"), (0.1, "red")],
    )  # fmt: skip


def segments_over_time(config: Config) -> Panel:
    now, before = (mean(config, table.SEGMENT_SECONDS, "segment", offset=offset) for offset in ("", BASELINE))
    return make_graph(
        config, "Change of segments over time", "When it began: look for a deployment or a restart at that minute.",
        [(f"topk(5, {_change(now, before)})", "{{segment}}")], "s", signed=True,
    )  # fmt: skip


def engines_changed(config: Config) -> Panel:
    by = "engine_id, role, segment"
    now, before = (mean(config, table.SEGMENT_SECONDS, by, offset=offset) for offset in ("", BASELINE))
    return make_list(
        config, "Engines and segments that grew",
        "One engine in all rows: drain it. All engines in one segment: the router, "
        "the mode or the load.",
        f"topk(20, {_change(now, before)})", "s",
    )  # fmt: skip


def pairs_changed(config: Config) -> Panel:
    by = "engine_id, peer, direction"
    ratio = f"({pair_rate(config, by)}) / ({pair_rate(config, by, offset=BASELINE)})"
    return make_list(
        config, "Pairs that became slower",
        "Rate now in per cent of the rate then. One pair below 50 %: its transport or its network. "
        "All of them: the fabric, or hosts without a free core.",
        f"bottomk(20, {ratio})", "percentunit", limits=[(0.5, "green")], smallest_first=True,
    )  # fmt: skip


def classes_changed(config: Config) -> Panel:
    now = total("class", recorded(config, table.HANDOVER_SECONDS))
    before = total("class", recorded(config, table.HANDOVER_SECONDS, offset=BASELINE))
    return make_list(
        config, "Classes that grew",
        "Seconds per second more than then: compute, queue, coordination or wire, which one it is.",
        _change(now, before), "s",
    )  # fmt: skip


def load_changed(config: Config) -> Panel:
    now, before = (
        total("", recorded(config, table.REQUESTS, 'side="decode"', offset=offset)) for offset in ("", BASELINE)
    )
    return make_graph(
        config, "Requests, now and then", "More requests with longer queues is load, not a fault.",
        [(now, "now"), (before, "then")], "reqps",
    )  # fmt: skip


def example_requests(config: Config) -> Panel:
    return make_sql_table(
        config, "Slowest requests",
        "Click a trace id: its budget and waterfall.", slowest_sql(config), links=True,
        units=MILLISECONDS,
    )  # fmt: skip

"""Panels of kvlens itself: what it records, loses and costs."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import braces, gauge, raw_rate, total
from .make import Panel, make_graph, make_list


def spans(config: Config) -> Panel:
    return make_graph(
        config, "Spans by state",
        "produced and exported should agree. dropped or failed: traces have holes; see the runbook.",
        [(total("exporter, state", raw_rate(config, table.SPANS)), "{{exporter}} {{state}}")], "ops",
    )  # fmt: skip


def queued(config: Config) -> Panel:
    return make_graph(
        config, "Spans that wait for an exporter", "Growing: the collector or the disk is slower than the engines.",
        [(total("exporter, process", gauge(config, table.SPANS_QUEUED)), "{{exporter}} {{process}}")], "none",
    )  # fmt: skip


def events(config: Config) -> Panel:
    return make_graph(
        config, "Recorder events", "dropped above zero: the background thread does not get enough CPU.",
        [(total("process, outcome", raw_rate(config, table.EVENTS)), "{{process}} {{outcome}}")], "ops",
    )  # fmt: skip


def overhead(config: Config) -> Panel:
    cost = total("engine_id, process", raw_rate(config, table.OVERHEAD_SECONDS))
    return make_graph(
        config, "CPU of kvlens's background thread, ten highest", "Share of one core. Above 5 %: sample less.",
        [(f"topk(10, {cost})", "{{engine_id}} {{process}}")], "percentunit", limits=[(0.05, "red")],
    )  # fmt: skip


def guard_errors(config: Config) -> Panel:
    return make_graph(
        config, "Failures inside kvlens",
        "Swallowed, requests go on. Above zero: search the engine's log for kvlens, report it.",
        [(total("engine_id, process", raw_rate(config, table.GUARD_ERRORS)), "{{engine_id}} {{process}}")], "ops",
    )  # fmt: skip


def evicted(config: Config) -> Panel:
    return make_graph(
        config, "Requests given up", "Too many followed at a time: their traces end early.",
        [(total("process", raw_rate(config, table.EVICTED)), "{{process}}")], "reqps",
    )  # fmt: skip


def engines(config: Config) -> Panel:
    who = "cluster, namespace, model_name, instance, engine_id, role, mode, backend, version"
    info = config.name(table.ENGINE_INFO) + braces(config.selectors, 'role=~"$role", engine_id=~"$engine"')
    return make_list(
        config, "Engines",
        "Who is who: the engine id is what other engines call peer. Different versions or backends in one "
        "column are a finding.",
        f"max by ({who}) ({info})", "none", hidden=("Value",),
    )  # fmt: skip


def traced(config: Config) -> Panel:
    name = f'{config.prefix}traced_spans_total{{cluster=~"$cluster"}}'
    return make_graph(
        config, "Spans read by `kvlens metrics`", "Zero: no exemplars, and no TTFT in the overview.",
        [(f"sum by (instance) (rate({name}[$__rate_interval]))", "{{instance}}")], "ops",
    )  # fmt: skip

"""Panels of transfers: rates of pairs, outcome, descriptors, handshakes."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table

from ..config import Config
from ..queries import pair_rate, quantile, raw_rate, recorded, recorded_fleet, total
from .make import Panel, make_graph, make_list

_PAIR = "{{engine_id}} -> {{peer}} {{direction}} {{backend}}"


def pair_rates(config: Config) -> Panel:
    return make_graph(
        config, "Rate of pairs, ten slowest",
        "Bytes per second while a transfer is under way. One pair or direction far below "
        "its sisters has fallen back to another transport.",
        [(f"bottomk(10, {pair_rate(config)})", _PAIR)], "Bps", limits=[(config.transfer_floor, "green")],
    )  # fmt: skip


def slowest_pairs(config: Config) -> Panel:
    return make_list(
        config, "Slowest pairs now", "Compare both directions of a pair, then the pair with others.",
        f"bottomk(20, {pair_rate(config)})", "Bps", limits=[(config.transfer_floor, "green")], smallest_first=True,
    )  # fmt: skip


def moved(config: Config) -> Panel:
    return make_graph(
        config, "Bytes moved",
        "By direction and backend: READ is pull, WRITE is push. A backend that you did not choose is "
        "the finding.",
        [(total("direction, backend", recorded(config, table.TRANSFERRED_BYTES)), "{{direction}} {{backend}}")], "Bps",
    )  # fmt: skip


def uncertainty(config: Config) -> Panel:
    unsure = total("direction", raw_rate(config, table.TRANSFER_UNCERTAIN_SECONDS))
    whole = total("direction", raw_rate(config, table.TRANSFER_SECONDS))
    return make_graph(
        config, "Uncertain share of transfer time",
        "Between the last poll in progress and the first one done. High: steps are "
        "long compared with transfers, so rates are lower bounds.",
        [(f"{unsure} / ({whole} > 0)", "{{direction}}")], "percentunit",
    )  # fmt: skip


def outcomes(config: Config) -> Panel:
    return make_graph(
        config, "Transfers by outcome", "Any error: read vLLM's failure on both engines of the pair.",
        [(total("direction, outcome", recorded(config, table.TRANSFERS)), "{{direction}} {{outcome}}")], "ops",
    )  # fmt: skip


def failures(config: Config) -> Panel:
    return make_graph(
        config, "Failures by vLLM's name", "The name is the search term for vLLM's log.",
        [(total("type", raw_rate(config, table.FAILURES)), "{{type}}")], "ops",
    )  # fmt: skip


def handshakes(config: Config) -> Panel:
    return make_graph(
        config, "Handshakes by outcome",
        "A burst of ok is a restart. compatibility_hash_mismatch: P and D are deployed from "
        "different versions.",
        [(total("outcome", raw_rate(config, table.HANDSHAKES)), "{{outcome}}")], "ops",
    )  # fmt: skip


def descriptors(config: Config) -> Panel:
    buckets = recorded_fleet(config, table.TRANSFER_DESCRIPTORS)
    return make_graph(
        config, "Descriptors per transfer", "Growing over days: the cache is fragmented, and posts grow with it.",
        [(quantile(q, "direction", buckets), f"p{q * 100:g} {{{{direction}}}}") for q in (0.5, 0.99)], "none",
    )  # fmt: skip


def descriptor_bytes(config: Config) -> Panel:
    name = config.name(table.TRANSFER_DESCRIPTOR_BYTES)
    total_bytes, count = (
        f"rate({name}_{part}{{{config.selectors}}}[$__rate_interval])" for part in ("sum", "count")
    )  # fmt: skip
    return make_graph(
        config, "Mean bytes per descriptor",
        "Below a few KiB the wire is limited by operations, not by bytes: larger blocks.",
        [(f"{total('direction', total_bytes)} / ({total('direction', count)} > 0)", "{{direction}}")], "bytes",
    )  # fmt: skip


def post_and_wire(config: Config) -> Panel:
    buckets = recorded_fleet(config, table.SEGMENT_SECONDS, 'segment=~"post|wire"')
    return make_graph(
        config, "Post and wire", "Post grows with descriptors; wire grows with bytes, congestion and retransmissions.",
        [(quantile(q, "segment", buckets), f"p{q * 100:g} {{{{segment}}}}") for q in (0.5, 0.99)], "s",
    )  # fmt: skip

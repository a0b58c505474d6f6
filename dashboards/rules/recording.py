"""Recording rules: rates with the engine's id and role, so that dashboards read few series also of 500 engines."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table
from instrumented_connectors.metrics.catalogue import Metric

from ..config import RATE_WINDOW, Config
from ..queries import ENGINE, FLEET, braces, identify, quantile, rate_of, total
from .model import Group, Recording

_ROUTE = "direction, backend, peer"


def make_recordings(config: Config) -> tuple[Group, ...]:
    """Return the groups of recording rules."""
    return (Group("kvlens-engines", "30s", (record_engines(config), *record_rates(config), *record_shares(config))),)


def record_engines(config: Config) -> Recording:
    """Record who each engine is: the other rules of the group join with it."""
    info = config.name(table.ENGINE_INFO)
    return Recording(config.engines, f"max by (cluster, namespace, job, instance, engine, engine_id, role) ({info})")


def record_rates(config: Config) -> tuple[Recording, ...]:
    """Record rates; buckets of histograms are kept per role only."""
    return (
        _rate(config, table.HANDOVER_SECONDS, f"{ENGINE}, mode, class"),
        _rate(config, table.REQUESTS, f"{ENGINE}, side, status"),
        _rate(config, table.TRANSFERRED_BYTES, f"{ENGINE}, {_ROUTE}"),
        _rate(config, table.TRANSFER_SECONDS, f"{ENGINE}, {_ROUTE}"),
        _rate(config, table.TRANSFER_UNCERTAIN_SECONDS, f"{ENGINE}, {_ROUTE}"),
        _rate(config, table.TRANSFERS, f"{ENGINE}, {_ROUTE}, outcome"),
        *_histogram(config, table.SEGMENT_SECONDS, "mode, segment"),
        *_histogram(config, table.PAIRING_LATENESS, "side"),
        *_histogram(config, table.LEASE_SECONDS, "outcome"),
        *_histogram(config, table.TRANSFER_DESCRIPTORS, "direction"),
    )


def record_shares(config: Config) -> tuple[Recording, ...]:
    """Record what several alerts and panels divide by."""
    wire = config.record(table.SEGMENT_SECONDS, "_bucket") + braces('segment="wire"')
    return (
        _share(config, config.record(table.HANDOVER_SECONDS), RATE_WINDOW),
        # Reading the recorded rates over an hour costs a tenth of a one-hour rate over all engines.
        _share(config, f"avg_over_time({config.record(table.HANDOVER_SECONDS)}%s[1h])", "1h"),
        record_coordination(config),
        Recording(f"{config.recorded}wire_seconds:p99", quantile(0.99, "cluster", wire)),
    )


def record_coordination(config: Config) -> Recording:
    """Record the mean coordination of a request in seconds: short prompts have high shares of very little."""
    by = "cluster, namespace, model_name, mode"
    seconds = config.record(table.HANDOVER_SECONDS) + '{class="coordination"}'
    # Each request has one first step on its decode engine: that counts requests by mode.
    requests = config.record(table.SEGMENT_SECONDS, "_count") + braces(f'segment="{table.FIRST_DECODE}"')
    return Recording(
        f"{config.recorded}coordination_seconds:5m", f"{total(by, seconds)} / ({total(by, requests)} > 0)"
    )  # fmt: skip


def _share(config: Config, series: str, window: str) -> Recording:
    by, matcher = "cluster, namespace, model_name, mode", '{class="coordination"}'
    part = series % matcher if "%s" in series else series + matcher
    whole = series % "" if "%s" in series else series
    return Recording(
        f"{config.recorded}coordination_share:{window}", f"{total(by, part)} / ({total(by, whole)} > 0)"
    )  # fmt: skip


def _rate(config: Config, metric: Metric, by: str, suffix: str = "") -> Recording:
    rate = identify(config, rate_of(config.name(metric, suffix)))
    return Recording(config.record(metric, suffix), total(by, rate))


def _histogram(config: Config, metric: Metric, own: str) -> tuple[Recording, ...]:
    return (
        _rate(config, metric, f"{FLEET}, {own}, le", "_bucket"),
        _rate(config, metric, f"{ENGINE}, {own}", "_sum"),
        _rate(config, metric, f"{ENGINE}, {own}", "_count"),
    )

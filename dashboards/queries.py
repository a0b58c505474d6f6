"""Pieces of PromQL, as functions of the configuration."""

from __future__ import annotations

from instrumented_connectors.metrics import catalogue as table
from instrumented_connectors.metrics.catalogue import Metric

from .config import RATE_WINDOW, Config

# Series of a scrape know vLLM's engine index; who that is (engine id, role) says `engine_info` of the same target.
TARGET = "cluster, namespace, job, instance, engine"
FLEET = "cluster, namespace, model_name, role"
ENGINE = f"{FLEET}, engine_id"
ENGINE_SELECTORS = 'role=~"$role", engine_id=~"$engine"'


def braces(*matchers: str) -> str:
    """Return `{...}` of the matchers that are not empty."""
    text = ", ".join(matcher for matcher in matchers if matcher)
    return f"{{{text}}}" if text else ""


def identify(config: Config, expression: str, *matchers: str) -> str:
    """Give the series of a scrape their engine's id and role."""
    return f"{expression} * on ({TARGET}) group_left (engine_id, role) {config.engines}{braces(*matchers)}"


def gauge(config: Config, metric: Metric, *matchers: str) -> str:
    """Return a gauge of the chosen engines."""
    return identify(config, config.name(metric) + braces(config.selectors, *matchers), ENGINE_SELECTORS)


def raw_rate(config: Config, metric: Metric, *matchers: str) -> str:
    """Return a counter's rate on the chosen engines, at the dashboard's resolution."""
    series = config.name(metric) + braces(config.selectors, *matchers)
    return identify(config, f"rate({series}[$__rate_interval])", ENGINE_SELECTORS)


def recorded(config: Config, metric: Metric, *matchers: str, suffix: str = "", offset: str = "") -> str:
    """Return a recorded rate per engine of the chosen engines."""
    series = config.record(metric, suffix) + braces(config.selectors, ENGINE_SELECTORS, *matchers)
    return f"{series} offset {offset}" if offset else series


def recorded_fleet(config: Config, metric: Metric, *matchers: str, offset: str = "") -> str:
    """Return the recorded rates of a histogram's buckets: per role, since buckets per engine are too many to keep."""
    series = config.record(metric, "_bucket") + braces(config.selectors, 'role=~"$role"', *matchers)
    return f"{series} offset {offset}" if offset else series


def total(by: str, expression: str) -> str:
    """Sum over all labels but `by`."""
    return f"sum by ({by}) ({expression})" if by else f"sum ({expression})"


def quantile(q: float, by: str, buckets: str) -> str:
    """Return a quantile of bucket rates, one per `by`."""
    return f"histogram_quantile({q}, {total(f'{by}, le' if by else 'le', buckets)})"


def mean(config: Config, metric: Metric, by: str, *matchers: str, offset: str = "") -> str:
    """Return the mean of a histogram's observations, one per `by`."""
    seconds = recorded(config, metric, *matchers, suffix="_sum", offset=offset)
    count = recorded(config, metric, *matchers, suffix="_count", offset=offset)
    return f"{total(by, seconds)} / ({total(by, count)} > 0)"


def share(config: Config, which: str, by: str = "") -> str:
    """Return the share of one class of the hand-over's seconds."""
    part = total(by, recorded(config, table.HANDOVER_SECONDS, f'class="{which}"'))
    return f"{part} / ({total(by, recorded(config, table.HANDOVER_SECONDS))} > 0)"


def pair_rate(config: Config, by: str = "engine_id, peer, direction, backend", offset: str = "") -> str:
    """Return bytes per second while a transfer is on its way."""
    moved = total(by, recorded(config, table.TRANSFERRED_BYTES, offset=offset))
    return f"{moved} / ({total(by, recorded(config, table.TRANSFER_SECONDS, offset=offset))} > 0)"


def grown(series: str, by: str, window: str) -> str:
    """Return how much counters grew, those included whose first increment made them: `increase` sees none of these.

    series: metric with its matchers, no range.
    """
    # The hour bridges a gap in scraping: a counter that was there before it is not new.
    new = f"({series} unless last_over_time({series}[1h] offset {window}))"
    return f"{total(by, f'increase({series}[{window}])')} > 0 or {total(by, new)} > 0"


def rate_of(series: str) -> str:
    """Return a counter's rate over the window of recorded series."""
    return f"rate({series}[{RATE_WINDOW}])"

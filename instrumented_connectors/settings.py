"""Settings: kvlens's own environment variables; everything about exporting uses OpenTelemetry's standard ones."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .recorder import DEFAULT_CAPACITY

logger = logging.getLogger("kvlens")

DRAIN_INTERVAL_S = 0.2
# OpenTelemetry's default of 5 s would lose 5 s of spans when an engine is killed.
EXPORT_INTERVAL_MS = 1000


@dataclass(frozen=True)
class SamplingSettings:
    """Which requests' spans are exported, and in what detail.

    Attributes:
        sampler: OTEL_TRACES_SAMPLER.
        ratio: OTEL_TRACES_SAMPLER_ARG, 0 to 1.
        keep_slow_ms: first tokens slower than this are kept whatever the sampler says (KVLENS_SAMPLE_KEEP_SLOW_MS).
        keep_failed: so are requests with a failed span (KVLENS_SAMPLE_KEEP_FAILED; on when keep_slow_ms is given).
        held_spans: spans held at most until their request is decided (KVLENS_SAMPLE_HELD_SPANS).
        detail: KVLENS_DETAIL, one of request, transfer and full.
    """

    sampler: str = "parentbased_always_on"
    ratio: float = 1.0
    keep_slow_ms: float | None = None
    keep_failed: bool = False
    held_spans: int = 8192
    detail: str = "full"

    @property
    def samples(self) -> bool:
        """Whether requests may be left out without their caller having said so."""
        return self.sampler not in {"always_on", "parentbased_always_on"}

    @property
    def keeps(self) -> bool:
        """Whether requests are decided after they ended."""
        return self.keep_failed or self.keep_slow_ms is not None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> SamplingSettings:
        """Read the environment; values that can't be read fall back to the default."""
        slow_ms = _number(env.get("KVLENS_SAMPLE_KEEP_SLOW_MS"), -1.0)
        failed = env.get("KVLENS_SAMPLE_KEEP_FAILED")
        ratio = _number(env.get("OTEL_TRACES_SAMPLER_ARG"), cls.ratio)
        return cls(
            sampler=(env.get("OTEL_TRACES_SAMPLER") or cls.sampler).strip().lower(),
            # As the SDK: what isn't a ratio means everything.
            ratio=ratio if 0.0 <= ratio <= 1.0 else cls.ratio,
            keep_slow_ms=slow_ms if slow_ms >= 0 else None,
            keep_failed=slow_ms >= 0 if failed is None else _truthy(failed),
            held_spans=read_positive(env, "KVLENS_SAMPLE_HELD_SPANS", cls.held_spans),
            detail=(env.get("KVLENS_DETAIL") or cls.detail).strip().lower(),
        )


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
        enabled: False with KVLENS_DISABLED=1 or OTEL_SDK_DISABLED=true; the connector is then the stock one.
        exporters: names of OpenTelemetry span exporters (OTEL_TRACES_EXPORTER), "kvlens" (files) by default.
        capacity: events that the recorder holds at most (KVLENS_RECORDER_CAPACITY).
        max_requests: requests followed at the same time at most (KVLENS_MAX_REQUESTS).
        sampling: which spans are exported.
        idle_flush: an engine that becomes idle takes one more empty step, so that no metric lies until the next
            request (KVLENS_IDLE_FLUSH=0 turns it off).
        prefix_digest: bidirectional: a decoder hands out a digest of the sequence whose blocks it keeps, and the
            prefill engine compares it with the next prompt (KVLENS_PREFIX_DIGEST=0 turns it off on either side).
        prefix_key: secret that the engines of a fleet share for it (KVLENS_PREFIX_KEY), None for the fixed key.
    """

    enabled: bool = True
    exporters: tuple[str, ...] = ("kvlens",)
    capacity: int = DEFAULT_CAPACITY
    max_requests: int = 16384
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    idle_flush: bool = True
    prefix_digest: bool = True
    prefix_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment; values that can't be read fall back to the default."""
        names = tuple(n.strip() for n in env.get("OTEL_TRACES_EXPORTER", "").split(",") if n.strip())
        return cls(
            enabled=not (_truthy(env.get("KVLENS_DISABLED")) or _truthy(env.get("OTEL_SDK_DISABLED"))),
            exporters=names or cls.exporters,
            capacity=read_positive(env, "KVLENS_RECORDER_CAPACITY", cls.capacity),
            max_requests=read_positive(env, "KVLENS_MAX_REQUESTS", cls.max_requests),
            sampling=SamplingSettings.from_env(env),
            idle_flush=_truthy(env.get("KVLENS_IDLE_FLUSH", "1")),
            prefix_digest=_truthy(env.get("KVLENS_PREFIX_DIGEST", "1")),
            prefix_key=env.get("KVLENS_PREFIX_KEY") or None,
        )


def _truthy(value: str | None) -> bool:
    return (value or "").strip().lower() in {"1", "true", "yes", "on"}


def _number(value: str | None, default: float) -> float:
    try:
        number = float(value or "")
    except ValueError:
        return default
    return default if math.isnan(number) else number


def read_positive(env: Mapping[str, str], name: str, default: int) -> int:
    """Read a positive whole number; anything else is said in the log and means the default."""
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value > 0:
        return value
    logger.warning("kvlens ignores %s=%r: not a positive whole number; using %d", name, text, default)
    return default

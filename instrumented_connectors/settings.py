"""Settings: kvlens's own environment variables; everything about exporting uses OpenTelemetry's standard ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .recorder import DEFAULT_CAPACITY

DRAIN_INTERVAL_S = 0.2
# OpenTelemetry's default of 5 s would lose 5 s of spans when an engine is killed.
EXPORT_INTERVAL_MS = 1000


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
        enabled: False with KVLENS_DISABLED=1 or OTEL_SDK_DISABLED=true; the connector is then the stock one.
        exporters: names of OpenTelemetry span exporters (OTEL_TRACES_EXPORTER), "kvlens" (files) by default.
        capacity: events that the recorder holds at most (KVLENS_RECORDER_CAPACITY).
        max_requests: requests followed at the same time at most (KVLENS_MAX_REQUESTS).
    """

    enabled: bool = True
    exporters: tuple[str, ...] = ("kvlens",)
    capacity: int = DEFAULT_CAPACITY
    max_requests: int = 16384

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment; values that can't be read fall back to the default."""
        names = tuple(n.strip() for n in env.get("OTEL_TRACES_EXPORTER", "").split(",") if n.strip())
        return cls(
            enabled=not (_truthy(env.get("KVLENS_DISABLED")) or _truthy(env.get("OTEL_SDK_DISABLED"))),
            exporters=names or cls.exporters,
            capacity=_positive(env.get("KVLENS_RECORDER_CAPACITY"), cls.capacity),
            max_requests=_positive(env.get("KVLENS_MAX_REQUESTS"), cls.max_requests),
        )


def _truthy(value: str | None) -> bool:
    return (value or "").strip().lower() in {"1", "true", "yes", "on"}


def _positive(value: str | None, default: int) -> int:
    try:
        number = int(value or "")
    except ValueError:
        return default
    return number if number > 0 else default

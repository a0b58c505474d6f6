"""vLLM's NIXL Prometheus metrics, untouched, and kvlens's beside them in the same `/metrics`."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from ..guard import guard
from ..stock import import_stock, mode_of, role_of
from .bridge import PromBridge, unregister_earlier
from .catalogue import COUNTER, GAUGE, HISTOGRAM
from .stats import KEY

Stock: Any = import_stock().NixlPromMetrics


class PromMetrics(Stock):  # type: ignore[misc]
    """Stock metrics, and those of the payloads.

    Args:
        mode: push or pull, as the connector class says; bidirectional follows from the configuration.
        vllm_config, metric_types, labelnames, per_engine_labelvalues: see vLLM's `KVConnectorPromMetrics`.
    """

    def __init__(
        self, mode: str, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._bridge: PromBridge | None = None
        with guard("metrics.register"):
            unregister_earlier()
            config = vllm_config.kv_transfer_config
            classes = {
                COUNTER: metric_types[Counter], GAUGE: metric_types[Gauge], HISTOGRAM: metric_types[Histogram],
            }  # fmt: skip
            self._bridge = PromBridge(
                classes, labelnames, per_engine_labelvalues, role_of(config), mode_of(config, mode)
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one step's stats of one engine."""
        super().observe(transfer_stats_data, engine_idx)
        payloads = transfer_stats_data.get(KEY)
        if payloads and self._bridge is not None:
            with guard("metrics.observe"):
                self._bridge.observe(payloads, engine_idx)

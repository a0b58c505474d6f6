"""The metrics' part of the connector facades: stats on their way, and their end in Prometheus.

Its place is between `InstrumentedMixin` and the stock class. Every method calls the stock one.
"""

from __future__ import annotations

from typing import Any

from ..compat import distribution_version
from ..runtime import Runtime
from ..settings import Settings
from ..stock import backend_of
from .port import NullPort, SchedulerPort, WorkerPort
from .prom import PromMetrics
from .stats import stock_data

_Stock: Any = object


class MetricsMixin(_Stock):  # type: ignore[misc]
    """Lets metrics travel inside the stock connector's stats."""

    _mode = "pull"

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._port: NullPort = NullPort()
        self._ranks = int(getattr(getattr(vllm_config, "parallel_config", None), "world_size", 1))
        super().__init__(vllm_config, role, kv_cache_config)

    def attach_metrics(self, runtime: Runtime, config: Any, settings: Settings) -> None:
        """Choose the port of this side, once."""
        collector, drain = runtime.metrics, runtime.assembler.drain
        collector.backend, collector.version = backend_of(config), distribution_version("kvlens")
        if self.connector_worker is not None:
            collector.rank = runtime.transfers.rank
            self._port = WorkerPort(collector, drain)
            return
        collector.process = "scheduler"
        collector.facts.ranks = self._ranks
        self._port = SchedulerPort(collector, drain, runtime.recorder, asks=settings.idle_flush)

    # -- scheduler side -------------------------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        self._port.plan(scheduler_output, metadata)
        return metadata

    def update_connector_output(self, connector_output: Any) -> None:
        self._port.told(connector_output)
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        self._port.touch()
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        self._port.touch()
        return super().request_finished_all_groups(request, block_ids)

    def has_pending_push_work(self) -> bool:
        # Absent in older versions, which then never ask.
        pending = getattr(super(), "has_pending_push_work", None)
        return bool(pending is not None and pending()) or self._port.wants_step()

    # -- worker side ----------------------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._port.loading(self._connector_metadata)
        super().start_load_kv(forward_context, **kwargs)

    # -- both -----------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> Any:
        return self._port.stats(super().get_kv_connector_stats())

    # -- front end ------------------------------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        # Only vLLM's log line is made of these: it stays as it is without kvlens.
        return super().build_kv_connector_stats(None if data is None else stock_data(data))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> Any:
        return PromMetrics(cls._mode, vllm_config, metric_types, labelnames, per_engine_labelvalues)

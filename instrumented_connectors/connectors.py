"""Seam 1: the connector facades under their stock names. Every method calls the stock one and records beside it."""

from __future__ import annotations

import logging
from typing import Any

from . import compat
from .agent import CurrentRequest, wrap_agent
from .decide import Policy
from .guard import guard
from .keep_hints import make_scheduler_lens, make_worker_lens
from .prefix_digest import make_key
from .prefix_giver import NullPrefixGiver, PrefixGiver
from .probes import install_probes
from .runtime import EngineIdentity, Runtime, get_runtime
from .scheduler_lens import NullSchedulerLens
from .settings import Settings
from .stock import import_stock, mode_of, read_terms, role_of, threshold_of
from .thread_samples import list_thread_ids
from .worker_lens import NullWorkerLens

logger = logging.getLogger("kvlens")

_stock = import_stock()
StockPull: Any = getattr(_stock, "NixlPullConnector", _stock.NixlConnector)
# No push connector before vLLM 0.26: its instrumented name is then missing too, as the stock one is.
StockPush: Any = getattr(_stock, "NixlPushConnector", None)

# Metrics travel inside the stock stats; a vLLM without them has spans only.
MetricsMixin: Any = object
if hasattr(_stock, "NixlKVConnectorStats") and hasattr(_stock, "NixlPromMetrics"):
    from .metrics.mixin import MetricsMixin

# The stock class follows in the bases; the type checker knows nothing of vLLM here.
_Stock: Any = object


class InstrumentedMixin(_Stock):  # type: ignore[misc]
    """Records around a stock NIXL connector; placed before the stock class in the bases."""

    _mode = "pull"

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        # Chosen once: the null lenses are replaced only when every required seam is there.
        self._scheduler_lens: NullSchedulerLens = NullSchedulerLens()
        self._worker_lens: NullWorkerLens = NullWorkerLens()
        self._prefix: NullPrefixGiver = NullPrefixGiver()
        self._runtime: Runtime | None = None
        threads_before = list_thread_ids()
        super().__init__(vllm_config, role, kv_cache_config)
        with guard("connector.attach"):
            self._attach(vllm_config, kv_cache_config)
            if self._runtime is not None and self.connector_worker is not None:
                self._runtime.threads.watch_worker(self.connector_worker, threads_before)

    def _attach(self, vllm_config: Any, kv_cache_config: Any) -> None:
        config, settings = vllm_config.kv_transfer_config, Settings.from_env()
        if not settings.enabled:
            return
        version = compat.vllm_version()
        if not compat.is_supported(version):
            logger.warning(
                "kvlens: vLLM %s is outside the range that was read (%s); recording what can be recorded",
                version or "unknown", " to ".join(compat.SUPPORTED),
            )  # fmt: skip
        lacking = compat.missing(self, compat.REQUIRED_FACADE)
        if lacking:
            logger.warning("kvlens: off, this vLLM's connector lacks %s", ", ".join(lacking))
            return
        identity = EngineIdentity(config.engine_id, role_of(config), mode_of(config, self._mode))
        if self.connector_worker is not None:
            self._attach_worker(identity, settings)
        else:
            self._runtime = get_runtime(identity, settings)
            self._scheduler_lens = make_scheduler_lens(
                self._runtime.recorder, settings.sampling, consumes=identity.role != "prefill",
                outbox=self._runtime.outbox,
            )  # fmt: skip
            self._scheduler_lens.wake = self._runtime.assembler.wake
            with guard("connector.reuse"):
                self._attach_reuse(self._runtime, identity, vllm_config, kv_cache_config)
        attach_metrics = getattr(self, "attach_metrics", None)
        if self._runtime is not None and attach_metrics is not None:
            attach_metrics(self._runtime, config, settings)

    def _attach_reuse(self, runtime: Runtime, identity: EngineIdentity, vllm_config: Any, kv_cache_config: Any) -> None:
        """Prepare the scheduler side for blocks that are read back."""
        runtime.leases.terms = read_terms(vllm_config, kv_cache_config)
        is_on = identity.mode == "bidirectional"
        runtime.decisions.policy = Policy(is_on, threshold_of(vllm_config.kv_transfer_config))
        if is_on and runtime.settings.prefix_digest:
            key = runtime.decisions.prefix_key = make_key(runtime.settings.prefix_key)
            if identity.role != "prefill":
                size = int(vllm_config.cache_config.block_size)
                self._prefix = giver = PrefixGiver(runtime.recorder, size, key, runtime.settings.max_requests)
                runtime.add_builder(giver)

    def _attach_worker(self, identity: EngineIdentity, settings: Settings) -> None:
        lacking = compat.missing(self.connector_worker.nixl_wrapper, compat.REQUIRED_AGENT)
        if lacking:
            logger.warning("kvlens: no transfer spans, this NIXL agent lacks %s", ", ".join(lacking))
            return
        runtime = self._runtime = get_runtime(identity, settings)
        rank = int(getattr(self.connector_worker, "tp_rank", 0))
        runtime.transfers.rank = runtime.steps.rank = runtime.threads.rank = rank
        current = CurrentRequest()
        wrap_agent(self.connector_worker.nixl_wrapper, runtime.recorder, current)
        lost = install_probes(self.connector_worker, runtime.recorder, current)
        if lost:
            logger.warning("kvlens: this vLLM gives no %s", "; no ".join(lost))
        follows = identity.mode != "push" and identity.role == "decode"
        self._worker_lens = make_worker_lens(runtime.recorder, settings.sampling, follows_peer=follows)

    # -- scheduler side --------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        self._scheduler_lens.arrived(request)
        self._prefix.arrived(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        result = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._scheduler_lens.matched(request, num_computed_tokens, result)
        return result

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        self._scheduler_lens.allocated(request, blocks, num_external_tokens)
        return super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._scheduler_lens.scheduled(scheduler_output)
        metadata = super().build_connector_meta(scheduler_output)
        self._scheduler_lens.attach(metadata)
        return metadata

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler_lens.told(connector_output)
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        result = super().request_finished(request, block_ids)
        self._scheduler_lens.finished(request, block_ids, result)
        self._prefix.give(request, result)
        return result

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        result = super().request_finished_all_groups(request, block_ids)
        self._scheduler_lens.finished(request, block_ids, result)
        self._prefix.give(request, result)
        return result

    def get_kv_connector_stats(self) -> Any:
        # The scheduler asks at the end of every step, the worker in the middle of one: its lens ignores the mark.
        self._scheduler_lens.step_ended()
        return super().get_kv_connector_stats()

    # -- worker side ---------------------------------------------------------------------------------------------

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._worker_lens.begun()
        super().bind_connector_metadata(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker_lens.loading(self._connector_metadata)
        super().start_load_kv(forward_context, **kwargs)
        self._worker_lens.loaded()

    def wait_for_save(self) -> None:
        self._worker_lens.saving()
        super().wait_for_save()
        self._worker_lens.saved()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        self._worker_lens.polling()
        results = super().get_transfer_results(finished_req_ids)
        self._worker_lens.reported(results.finished_recving, results.finished_sending, results.failed_recving)
        return results

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        # Asked up to vLLM 0.29; from 0.30 the runner asks `get_transfer_results`, which doesn't come through here.
        self._worker_lens.polling()
        sent, received = super().get_finished(finished_req_ids)
        self._worker_lens.reported(received, sent, None)
        return sent, received

    def shutdown(self) -> Any:
        # First, and within a bound: stock shutdown waits for a thread, and a second SIGTERM meanwhile ends the process.
        if self._runtime is not None:
            self._runtime.close()
        return super().shutdown()


class NixlPullConnector(InstrumentedMixin, MetricsMixin, StockPull):  # type: ignore[misc]
    """Stock pull connector, recorded."""

    _mode = "pull"


class NixlConnector(NixlPullConnector):
    """Stock name of the pull connector."""


class NixlBidirectionalConnector(NixlPullConnector):
    """Pull connector with `bidirectional_kv_xfer` on: P may read earlier turns back from D. Use it on both sides."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        config = vllm_config.kv_transfer_config
        # The stock class reads the option in its constructor; what the user wrote is kept as it is.
        config.kv_connector_extra_config = {**(config.kv_connector_extra_config or {}), "bidirectional_kv_xfer": True}
        super().__init__(vllm_config, role, kv_cache_config)


if StockPush is not None:

    class NixlPushConnector(InstrumentedMixin, MetricsMixin, StockPush):  # type: ignore[misc]
        """Stock push connector, recorded."""

        _mode = "push"

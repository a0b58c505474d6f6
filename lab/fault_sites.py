"""The fault sites in the engines: one small function each, that wraps one method of a stock vLLM or NIXL class.

All act on the classes before anything is constructed, and so below the instrumented connectors: a delay here is what a
slow engine, network or peer would look like to them. With no fault on, a site costs one look at a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .agent_faults import install_agent_sites
from .faults import FaultFile
from .patching import find_rank, replace_method


def install_fault_sites(faults: FaultFile) -> None:
    """Install every site of this process that vLLM's and NIXL's classes offer."""
    from vllm.distributed import nixl_utils
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import (
        pull_scheduler,
        pull_worker,
        push_scheduler,
        push_worker,
    )
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    delay_model_execution(WorkerWrapperBase, faults)
    delay_admission(pull_scheduler.NixlPullConnectorScheduler, faults)
    delay_admission(push_scheduler.NixlPushConnectorScheduler, faults)
    delay_pull_dispatch(pull_worker.NixlPullConnectorWorker, faults)
    delay_push_dispatch(push_worker.NixlPushConnectorWorker, faults)
    withhold_finished_reads(pull_worker.NixlPullConnectorWorker, faults)
    fail_telemetry(faults)
    if nixl_utils.NixlWrapper is not None:
        install_agent_sites(nixl_utils.NixlWrapper, faults)


def delay_model_execution(wrapper: type, faults: FaultFile) -> None:
    """Sites prefill_compute and first_decode: sleep before a step runs on the model."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def execute_model(self: Any, scheduler_output: Any) -> Any:
            if scheduler_output.total_num_scheduled_tokens and faults.any_on():
                _sleep_before_step(scheduler_output, faults)
            return stock(self, scheduler_output)

        return execute_model

    replace_method(wrapper, "execute_model", replace)


def _sleep_before_step(scheduler_output: Any, faults: FaultFile) -> None:
    first_runs = len(scheduler_output.scheduled_new_reqs)
    # On P, whose requests end with their first token, every scheduled token is a prompt token.
    if faults.is_role("prefill"):
        time.sleep(faults.delay_s("prefill_compute", find_rank()))
    if first_runs and faults.is_role("decode"):
        time.sleep(faults.delay_s("first_decode", find_rank()))


def delay_admission(scheduler: type, faults: FaultFile) -> None:
    """Site decode_admission: the connector answers "cannot say yet", so vLLM asks again in the next step."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> Any:
            params = request.kv_transfer_params
            if params and params.get("do_remote_prefill") and faults.is_on("decode_admission"):
                due = getattr(request, "kvlens_lab_admit_at", None)
                if due is None:
                    due = time.perf_counter() + faults.delay_s("decode_admission")
                    request.kvlens_lab_admit_at = due
                if time.perf_counter() < due:
                    return None, False
            return stock(self, request, num_computed_tokens)

        return get_num_new_matched_tokens

    replace_method(scheduler, "get_num_new_matched_tokens", replace)


def delay_pull_dispatch(worker: type, faults: FaultFile) -> None:
    """Site dispatch (pull): wait before the read is prepared; not for a call that only starts a handshake."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def _read_blocks_for_req(self: Any, req_id: str, meta: Any) -> Any:
            if faults.any_on() and meta.remote is not None and meta.remote.engine_id in self._remote_agents:
                time.sleep(faults.delay_s("dispatch", find_rank()))
            return stock(self, req_id, meta)

        return _read_blocks_for_req

    replace_method(worker, "_read_blocks_for_req", replace)


def delay_push_dispatch(worker: type, faults: FaultFile) -> None:
    """Site dispatch (push): wait before the write is prepared; not for a call that only starts a handshake."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def _do_start_push_kv(self: Any, request_id: str, blocks: Any, registration: Any) -> Any:
            if faults.any_on() and registration.get("decode_engine_id") in self._remote_agents:
                time.sleep(faults.delay_s("dispatch", find_rank()))
            return stock(self, request_id, blocks, registration)

        return _do_start_push_kv

    replace_method(worker, "_do_start_push_kv", replace)


def withhold_finished_reads(worker: type, faults: FaultFile) -> None:
    """Site completion (pull): the worker reports a finished read to the scheduler late."""
    held: dict[str, float] = {}

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_transfer_results(self: Any, *args: Any, **kwargs: Any) -> Any:
            results = stock(self, *args, **kwargs)
            if held or (results.finished_recving and faults.any_on()):
                now = time.perf_counter()
                for request_id in results.finished_recving - results.failed_recving:
                    if delay := faults.delay_s("completion", find_rank()):
                        results.finished_recving.discard(request_id)
                        held[request_id] = now + delay
                for request_id in [request_id for request_id, due in held.items() if due <= now]:
                    del held[request_id]
                    results.finished_recving.add(request_id)
            return results

        return get_transfer_results

    replace_method(worker, "get_transfer_results", replace)


def fail_telemetry(faults: FaultFile) -> None:
    """Site telemetry: reading a request's trace context raises, inside kvlens's guard."""
    from instrumented_connectors import scheduler_lens

    stock = scheduler_lens.request_trace_context

    def request_trace_context(*args: Any, **kwargs: Any) -> Any:
        if faults.any_on() and faults.delay_s("telemetry"):
            raise RuntimeError("a failure of kvlens's own, injected by the lab")
        return stock(*args, **kwargs)

    scheduler_lens.request_trace_context = request_trace_context

"""The fault sites in the engines: one small function each, that wraps one method of a stock vLLM or NIXL class.

All act on the classes before anything is constructed, and so below the instrumented connectors: a delay here is what a
slow engine, network or peer would look like to them. With no fault on, a site costs one look at a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

from .faults import FaultFile


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
    agent = nixl_utils.NixlWrapper
    if agent is not None:
        delay_registration(agent, faults)
        delay_post(agent, faults)
        fail_transfer(agent, faults)
        delay_wire(agent, faults)
        withhold_completion_notifications(agent, faults)


def delay_model_execution(wrapper: type, faults: FaultFile) -> None:
    """Sites prefill_compute and first_decode: sleep before a step runs on the model."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def execute_model(self: Any, scheduler_output: Any) -> Any:
            if scheduler_output.total_num_scheduled_tokens and faults.any_on():
                _sleep_before_step(scheduler_output, faults)
            return stock(self, scheduler_output)

        return execute_model

    _replace(wrapper, "execute_model", replace)


def _sleep_before_step(scheduler_output: Any, faults: FaultFile) -> None:
    first_runs = len(scheduler_output.scheduled_new_reqs)
    # On P, whose requests end with their first token, every scheduled token is a prompt token.
    if faults.is_role("prefill"):
        time.sleep(faults.delay_s("prefill_compute", _rank()))
    if first_runs and faults.is_role("decode"):
        time.sleep(faults.delay_s("first_decode", _rank()))


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

    _replace(scheduler, "get_num_new_matched_tokens", replace)


def delay_registration(agent: type, faults: FaultFile) -> None:
    """Site registration: the notification that carries a push registration takes long to send."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def send_notif(self: Any, remote_agent_name: str, notif_msg: bytes, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on() and notif_msg.startswith(PUSH_REG_NOTIF_PREFIX):
                time.sleep(faults.delay_s("registration", _rank()))
            return stock(self, remote_agent_name, notif_msg, *args, **kwargs)

        return send_notif

    _replace(agent, "send_notif", replace)


def delay_pull_dispatch(worker: type, faults: FaultFile) -> None:
    """Site dispatch (pull): wait before the read is prepared; not for a call that only starts a handshake."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def _read_blocks_for_req(self: Any, req_id: str, meta: Any) -> Any:
            if faults.any_on() and meta.remote is not None and meta.remote.engine_id in self._remote_agents:
                time.sleep(faults.delay_s("dispatch", _rank()))
            return stock(self, req_id, meta)

        return _read_blocks_for_req

    _replace(worker, "_read_blocks_for_req", replace)


def delay_push_dispatch(worker: type, faults: FaultFile) -> None:
    """Site dispatch (push): wait before the write is prepared; not for a call that only starts a handshake."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def _do_start_push_kv(self: Any, request_id: str, blocks: Any, registration: Any) -> Any:
            if faults.any_on() and registration.get("decode_engine_id") in self._remote_agents:
                time.sleep(faults.delay_s("dispatch", _rank()))
            return stock(self, request_id, blocks, registration)

        return _do_start_push_kv

    _replace(worker, "_do_start_push_kv", replace)


def delay_post(agent: type, faults: FaultFile) -> None:
    """Site post: the submission call blocks before it submits."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on():
                time.sleep(faults.delay_s("post", _rank()))
            return stock(self, handle, *args, **kwargs)

        return transfer

    _replace(agent, "transfer", replace)


def fail_transfer(agent: type, faults: FaultFile) -> None:
    """Site transfer_error: the submission raises, as NIXL does when the other side has gone."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on() and (delay := faults.delay_s("transfer_error", _rank())):
                time.sleep(delay)
                raise RuntimeError("a failure of the transfer, injected by the lab")
            return stock(self, handle, *args, **kwargs)

        return transfer

    _replace(agent, "transfer", replace)


def delay_wire(agent: type, faults: FaultFile) -> None:
    """Site wire: the transfer is submitted when the delay is over; until then its state is PROC.

    Answering PROC for a transfer that runs would not do: in push the bytes and NIXL's own completion notification
    would reach D in the meantime.
    """
    waiting: dict[int, tuple[float, float, tuple[Any, ...], dict[str, Any]]] = {}
    late_s: dict[int, float] = {}

    def replace_transfer(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            delay = faults.delay_s("wire", _rank()) if faults.any_on() else 0.0
            if not delay:
                return stock(self, handle, *args, **kwargs)
            waiting[_key(handle)] = (time.perf_counter() + delay, delay, args, kwargs)
            return "PROC"

        return transfer

    def replace_check(stock: Callable[..., Any]) -> Callable[..., Any]:
        def check_xfer_state(self: Any, handle: Any) -> Any:
            if waiting and (held := waiting.get(_key(handle))) is not None:
                due, delay, args, kwargs = held
                if time.perf_counter() < due:
                    return "PROC"
                del waiting[_key(handle)]
                late_s[_key(handle)] = delay
                state = submit(self, handle, *args, **kwargs)
                return state if state != "PROC" else stock(self, handle)
            return stock(self, handle)

        return check_xfer_state

    def replace_telemetry(stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_xfer_telemetry(self: Any, handle: Any) -> Any:
            figures = stock(self, handle)
            delay = late_s.get(_key(handle)) if late_s else None
            return figures if delay is None else _lengthen(figures, delay)

        return get_xfer_telemetry

    def replace_release(stock: Callable[..., Any]) -> Callable[..., Any]:
        def release_xfer_handle(self: Any, handle: Any) -> Any:
            if waiting or late_s:
                waiting.pop(_key(handle), None)
                late_s.pop(_key(handle), None)
            return stock(self, handle)

        return release_xfer_handle

    submit = _replace(agent, "transfer", replace_transfer)
    _replace(agent, "check_xfer_state", replace_check)
    _replace(agent, "get_xfer_telemetry", replace_telemetry)
    _replace(agent, "release_xfer_handle", replace_release)


def _lengthen(figures: Any, delay_s: float) -> Any:
    """Return NIXL's figures as they would be if the wire itself had been slow."""
    return SimpleNamespace(
        startTime=figures.startTime,
        postDuration=figures.postDuration,
        xferDuration=figures.xferDuration + int(delay_s * 1e6),
        totalBytes=figures.totalBytes,
        descCount=figures.descCount,
    )


def withhold_completion_notifications(agent: type, faults: FaultFile) -> None:
    """Site completion (push): D is told late that its blocks are written."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

    held: list[tuple[float, str, bytes]] = []

    def hold(peer: str, messages: list[bytes]) -> list[bytes]:
        passed = []
        for message in messages:
            delay = 0.0
            if not message.startswith((PUSH_REG_NOTIF_PREFIX, b"HB:")):
                delay = faults.delay_s("completion", _rank())
            if delay:
                held.append((time.perf_counter() + delay, peer, message))
            else:
                passed.append(message)
        return passed

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_new_notifs(self: Any, *args: Any, **kwargs: Any) -> Any:
            notifs = stock(self, *args, **kwargs)
            # On P, completion notifications (of reads) free blocks; they are on nobody's path to a first token.
            if not held and not (notifs and faults.is_role("decode") and faults.is_on("completion")):
                return notifs
            result = {peer: hold(peer, messages) for peer, messages in notifs.items()}
            now = time.perf_counter()
            for entry in [entry for entry in held if entry[0] <= now]:
                held.remove(entry)
                result.setdefault(entry[1], []).append(entry[2])
            return {peer: messages for peer, messages in result.items() if messages}

        return get_new_notifs

    _replace(agent, "get_new_notifs", replace)


def withhold_finished_reads(worker: type, faults: FaultFile) -> None:
    """Site completion (pull): the worker reports a finished read to the scheduler late."""
    held: dict[str, float] = {}

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_transfer_results(self: Any, *args: Any, **kwargs: Any) -> Any:
            results = stock(self, *args, **kwargs)
            if held or (results.finished_recving and faults.any_on()):
                now = time.perf_counter()
                for request_id in results.finished_recving - results.failed_recving:
                    if delay := faults.delay_s("completion", _rank()):
                        results.finished_recving.discard(request_id)
                        held[request_id] = now + delay
                for request_id in [request_id for request_id, due in held.items() if due <= now]:
                    del held[request_id]
                    results.finished_recving.add(request_id)
            return results

        return get_transfer_results

    _replace(worker, "get_transfer_results", replace)


def fail_telemetry(faults: FaultFile) -> None:
    """Site telemetry: reading a request's trace context raises, inside kvlens's guard."""
    from instrumented_connectors import scheduler_lens

    stock = scheduler_lens.request_trace_context

    def request_trace_context(*args: Any, **kwargs: Any) -> Any:
        if faults.any_on() and faults.delay_s("telemetry"):
            raise RuntimeError("a failure of kvlens's own, injected by the lab")
        return stock(*args, **kwargs)

    scheduler_lens.request_trace_context = request_trace_context


def _replace(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Replace a method (own or inherited) once by what `make` returns for it; return the replaced one."""
    stock = getattr(owner, name)
    replacement = wraps(stock)(make(stock))
    setattr(owner, name, replacement)
    return stock  # type: ignore[no-any-return]


def _key(handle: Any) -> int:
    """Return NIXL's own number of a transfer handle (the wrapper objects cannot be weakly referenced)."""
    return int(getattr(handle, "_handle", 0) or id(handle))


def _rank() -> int | None:
    """Return this process's tensor-parallel rank, None where there is no such group."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return int(get_tensor_model_parallel_rank())
    except (ImportError, AssertionError):
        return None

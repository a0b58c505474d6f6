"""Optional probes on vLLM's private worker methods: a missing one loses its span, never the request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from . import events
from .agent import CurrentRequest
from .compat import PROBES
from .guard import guard
from .recorder import Recorder


def install_probes(worker: Any, recorder: Recorder, current: CurrentRequest) -> list[str]:
    """Wrap the probed methods on the worker instance.

    Returns:
        What is lost, one phrase per method that this vLLM doesn't have.
    """
    makers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        "_nixl_handshake": lambda call: _probe_handshake(call, recorder),
        "_log_failure": lambda call: _probe_failure(call, recorder),
        "_read_blocks_for_req": lambda call: _probe_submission(call, current),
        "_do_start_push_kv": lambda call: _probe_submission(call, current),
        "_is_turn2_read_expired": lambda call: _probe_expiry(call, worker, recorder, current),
    }
    lost = []
    for probe in PROBES:
        method = getattr(worker, probe.method, None)
        if callable(method):
            setattr(worker, probe.method, makers[probe.method](method))
        elif not _is_unused(worker, probe.method):
            lost.append(probe.loses)
    return lost


def _is_unused(worker: Any, method: str) -> bool:
    """A pull worker has no push methods and the other way round, only bidirectional ones read back: nothing is lost."""
    if method == "_is_turn2_read_expired":
        return not getattr(worker, "_bidirectional_kv_xfer_enabled", False)
    pair = {"_read_blocks_for_req", "_do_start_push_kv"}
    return method in pair and any(callable(getattr(worker, other, None)) for other in pair - {method})


def _probe_submission(call: Callable[..., Any], current: CurrentRequest) -> Callable[..., Any]:
    def submit(request_id: Any, *args: Any, **kwargs: Any) -> Any:
        current.request_id = request_id
        try:
            return call(request_id, *args, **kwargs)
        finally:
            current.request_id = None

    return submit


def _probe_expiry(
    call: Callable[..., Any], worker: Any, recorder: Recorder, current: CurrentRequest
) -> Callable[..., Any]:
    def is_expired(*args: Any, **kwargs: Any) -> Any:
        expired = call(*args, **kwargs)
        with guard("probe.expiry"):
            remote = (args[0] if args else kwargs["meta"]).remote
            offset = getattr(worker, "_engine_clock_offset", {}).get(remote.engine_id)
            blocks = getattr(worker, "dst_num_blocks", {}).get(remote.engine_id)
            recorder.record((
                events.READ_CHECK, perf_counter_ns(), current.request_id, remote.engine_id, offset, blocks,
                bool(expired),
            ))  # fmt: skip
        return expired

    return is_expired


def _probe_handshake(call: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    signature = inspect.signature(call)

    def handshake(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        error: BaseException | None = None
        try:
            return call(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with guard("probe.handshake"):
                bound = signature.bind_partial(*args, **kwargs).arguments
                recorder.record((
                    events.HANDSHAKE, start, perf_counter_ns(), str(bound.get("expected_engine_id", "")),
                    classify_handshake(error), bool(bound.get("notif_agents_only", False)),
                ))  # fmt: skip

    return handshake


def classify_handshake(error: BaseException | None) -> str:
    """Return why a handshake failed, from a closed list ("" when it worked)."""
    if error is None:
        return ""
    text = str(error).lower()
    if "compatibility hash mismatch" in text:
        return "compatibility_hash_mismatch"
    if "engine id mismatch" in text:
        return "engine_id_mismatch"
    if "failed to decode" in text:
        return "decode_error"
    # zmq reports its receive time-out as `Again`.
    if type(error).__name__ in {"Again", "TimeoutError"} or "timed out" in text:
        return "timeout"
    return "other"


def _probe_failure(call: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def log_failure(*args: Any, **kwargs: Any) -> Any:
        with guard("probe.failure"):
            recorder.record(_describe_failure(args, kwargs))
        return call(*args, **kwargs)

    return log_failure


def _describe_failure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Event:
    failure_type = args[0] if args else kwargs.get("failure_type", "")
    request_id = args[1] if len(args) > 1 else kwargs.get("req_id")
    error = kwargs.get("error")
    # The message and the context may name hosts and blocks: only the kinds are kept.
    error_type = type(error).__name__ if error is not None else str(kwargs.get("xfer_state") or "")
    peer = kwargs.get("remote_engine_id") or kwargs.get("dst_engine_id")
    return (events.FAILURE, perf_counter_ns(), str(failure_type), request_id, error_type, peer)

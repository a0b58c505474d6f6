"""Seam 2: the NIXL agent. Its methods are wrapped on the instance, right after vLLM's worker built it.

The wrapper keeps arguments, results and exceptions as they are; around the call it appends one event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import current_thread
from time import perf_counter_ns
from typing import Any

from . import events
from .compat import REQUIRED_AGENT, missing
from .events import POSTED
from .guard import guard, guarded
from .recorder import Recorder


class CurrentRequest(threading.local):
    """The request that a probe says is being submitted on this thread."""

    request_id: str | None = None


def wrap_agent(agent: Any, recorder: Recorder, current: CurrentRequest) -> list[str]:
    """Wrap a NIXL agent in place.

    Args:
        agent: vLLM's NIXL agent.
        recorder: receives the events.
        current: set by the probes around a submission.

    Returns:
        Names of required methods that the agent lacks; nothing is wrapped then.
    """
    lacking = missing(agent, REQUIRED_AGENT)
    if lacking:
        return lacking
    record = recorder.record
    agent.make_prepped_xfer = _wrap_prepare(agent.make_prepped_xfer, record, current)
    agent.transfer = _wrap_transfer(agent.transfer, record)
    # Polls of a transfer in progress are folded into one small list: a long transfer is polled once per step.
    polling: dict[int, list[int]] = {}
    agent.check_xfer_state = _wrap_check(agent.check_xfer_state, record, polling)
    if callable(getattr(agent, "release_xfer_handle", None)):
        agent.release_xfer_handle = _wrap_release(agent.release_xfer_handle, polling)
    agent.get_new_notifs = _wrap_notifications(agent.get_new_notifs, record)
    agent.send_notif = _wrap_send(agent.send_notif, record)
    if callable(getattr(agent, "get_xfer_telemetry", None)):
        agent.get_xfer_telemetry = _wrap_telemetry(agent.get_xfer_telemetry, record)
    return []


Record = Callable[[events.Event], None]


def _wrap_prepare(call: Callable[..., Any], record: Record, current: CurrentRequest) -> Callable[..., Any]:
    def make_prepped_xfer(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        handle = None
        try:
            handle = call(*args, **kwargs)
            return handle
        finally:
            with guard("agent.make_prepped_xfer"):
                operation, descriptors, notification = describe_transfer(args, kwargs)
                record((
                    events.PREP, start, perf_counter_ns(), id(handle), operation, descriptors, notification,
                    current.request_id, current_thread().name, handle is not None,
                ))  # fmt: skip

    return make_prepped_xfer


def describe_transfer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int, bytes | None]:
    """Return (operation, descriptors, notification) of a `make_prepped_xfer` call, however it was called."""
    operation = args[0] if args else kwargs.get("operation", "")
    indices = args[2] if len(args) > 2 else kwargs.get("local_indices", ())
    notification = args[5] if len(args) > 5 else kwargs.get("notif_msg")
    return str(operation), len(indices), notification or None


def _wrap_transfer(call: Callable[..., Any], record: Record) -> Callable[..., Any]:
    def transfer(handle: Any, *args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        ok = False
        try:
            result = call(handle, *args, **kwargs)
            ok = result != "ERR"
            return result
        finally:
            record((POSTED, start, perf_counter_ns(), id(handle), current_thread().name, ok))

    return transfer


def _wrap_release(call: Callable[..., Any], polling: dict[int, list[int]]) -> Callable[..., Any]:
    def release_xfer_handle(handle: Any, *args: Any, **kwargs: Any) -> Any:
        # A failed transfer is released without having been seen done; its id may be used again.
        polling.pop(id(handle), None)
        return call(handle, *args, **kwargs)

    return release_xfer_handle


def _wrap_check(call: Callable[..., Any], record: Record, polling: dict[int, list[int]]) -> Callable[..., Any]:
    def check_xfer_state(handle: Any, *args: Any, **kwargs: Any) -> Any:
        asked = perf_counter_ns()
        try:
            state = call(handle, *args, **kwargs)
        except Exception:
            # A peer that died is told by an exception, not by a state.
            last, polls = polling.pop(id(handle), (0, 0))
            record((events.DONE, perf_counter_ns(), id(handle), last, polls + 1, "ERR", current_thread().name))
            raise
        if state == "PROC":
            seen = polling.get(id(handle))
            if seen is None:
                polling[id(handle)] = [asked, 1]
            else:
                seen[0] = asked
                seen[1] += 1
        else:
            last, polls = polling.pop(id(handle), (0, 0))
            record((events.DONE, perf_counter_ns(), id(handle), last, polls + 1, state, current_thread().name))
        return state

    return check_xfer_state


def _wrap_telemetry(call: Callable[..., Any], record: Record) -> Callable[..., Any]:
    def get_xfer_telemetry(handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = None
        try:
            result = call(handle, *args, **kwargs)
            return result
        finally:
            with guard("agent.get_xfer_telemetry"):
                record((events.TELEMETRY, perf_counter_ns(), id(handle), *read_telemetry(result)))

    return get_xfer_telemetry


def read_telemetry(result: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """Return (post us, transfer us, bytes, descriptors) of NIXL's telemetry, None for what it doesn't say."""
    names = ("postDuration", "xferDuration", "totalBytes", "descCount")
    post, transfer, size, descriptors = (getattr(result, name, None) for name in names)
    return tuple(None if v is None else int(v) for v in (post, transfer, size, descriptors))  # type: ignore[return-value]


def _wrap_notifications(call: Callable[..., Any], record: Record) -> Callable[..., Any]:
    note = guarded(_note_messages)

    def get_new_notifs(*args: Any, **kwargs: Any) -> Any:
        received = call(*args, **kwargs)
        if received:
            note(received, record)
        return received

    return get_new_notifs


def _note_messages(received: dict[str, list[bytes]], record: Record) -> None:
    messages = [message for batch in received.values() for message in batch]
    if messages:
        record((events.NOTIFIED, perf_counter_ns(), messages, current_thread().name))


def _wrap_send(call: Callable[..., Any], record: Record) -> Callable[..., Any]:
    def send_notif(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        ok = False
        try:
            result = call(*args, **kwargs)
            ok = True
            return result
        finally:
            with guard("agent.send_notif"):
                message = args[1] if len(args) > 1 else kwargs.get("notif_msg", b"")
                record((events.SENT, start, perf_counter_ns(), message, current_thread().name, ok))

    return send_notif

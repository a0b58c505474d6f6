"""The fault sites on NIXL's agent: registration, post, failed transfer, wire, completion notifications."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .faults import FaultFile
from .patching import find_rank, replace_method


def install_agent_sites(agent: type, faults: FaultFile) -> None:
    """Install them all."""
    delay_registration(agent, faults)
    delay_post(agent, faults)
    fail_transfer(agent, faults)
    delay_wire(agent, faults)
    withhold_completion_notifications(agent, faults)


def delay_registration(agent: type, faults: FaultFile) -> None:
    """Site registration: the notification that carries a push registration takes long to send."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def send_notif(self: Any, remote_agent_name: str, notif_msg: bytes, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on() and notif_msg.startswith(PUSH_REG_NOTIF_PREFIX):
                time.sleep(faults.delay_s("registration", find_rank()))
            return stock(self, remote_agent_name, notif_msg, *args, **kwargs)

        return send_notif

    replace_method(agent, "send_notif", replace)


def delay_post(agent: type, faults: FaultFile) -> None:
    """Site post: the submission call blocks before it submits."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on():
                time.sleep(faults.delay_s("post", find_rank()))
            return stock(self, handle, *args, **kwargs)

        return transfer

    replace_method(agent, "transfer", replace)


def fail_transfer(agent: type, faults: FaultFile) -> None:
    """Site transfer_error: the submission raises, as NIXL does when the other side has gone."""

    def replace(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if faults.any_on() and (delay := faults.delay_s("transfer_error", find_rank())):
                time.sleep(delay)
                raise RuntimeError("a failure of the transfer, injected by the lab")
            return stock(self, handle, *args, **kwargs)

        return transfer

    replace_method(agent, "transfer", replace)


def delay_wire(agent: type, faults: FaultFile) -> None:
    """Site wire: the transfer is submitted when the delay is over; until then its state is PROC.

    Answering PROC for a transfer that runs would not do: in push the bytes and NIXL's own completion notification
    would reach D in the meantime.
    """
    waiting: dict[int, tuple[float, float, tuple[Any, ...], dict[str, Any]]] = {}
    late_s: dict[int, float] = {}

    def replace_transfer(stock: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(self: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            delay = faults.delay_s("wire", find_rank()) if faults.any_on() else 0.0
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

    submit = replace_method(agent, "transfer", replace_transfer)
    replace_method(agent, "check_xfer_state", replace_check)
    replace_method(agent, "get_xfer_telemetry", replace_telemetry)
    replace_method(agent, "release_xfer_handle", replace_release)


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
                delay = faults.delay_s("completion", find_rank())
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

    replace_method(agent, "get_new_notifs", replace)


def _key(handle: Any) -> int:
    """Return NIXL's own number of a transfer handle (the wrapper objects cannot be weakly referenced)."""
    return int(getattr(handle, "_handle", 0) or id(handle))

"""What the worker-side facade records. Each method is called beside a stock call, never around it."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from . import events
from .guard import guarded
from .recorder import Recorder


class NullWorkerLens:
    """Records nothing."""

    def loading(self, metadata: Any) -> None: ...
    def reported(self, received: Any, sent: Any, failed: Any) -> None: ...


class WorkerLens(NullWorkerLens):
    """Appends one event per worker call that carries something.

    Args:
        recorder: receives the events.
        follows_peer: requests take their trace from the peer's request (a pulling decode engine).
    """

    def __init__(self, recorder: Recorder, *, follows_peer: bool) -> None:
        self._record = recorder.record
        self._follows_peer = follows_peer

    @guarded
    def loading(self, metadata: Any) -> None:
        """Record which requests the scheduler handed to this worker."""
        finished = getattr(metadata, "push_finished_blocks", None)
        contexts = getattr(metadata, "kvlens_contexts", None)
        receiving = metadata.reqs_to_recv
        if receiving or finished or contexts:
            now = perf_counter_ns()
            requests = [(request_id, *_remote(meta)) for request_id, meta in receiving.items()]
            self._record((events.LOAD, now, requests, tuple(finished or ()), contexts, self._follows_peer))

    @guarded
    def reported(self, received: Any, sent: Any, failed: Any) -> None:
        """Record the transfers that this worker reports as complete."""
        if received or sent:
            now = perf_counter_ns()
            self._record((events.RESULTS, now, tuple(received or ()), tuple(sent or ()), frozenset(failed or ())))


def _remote(meta: Any) -> tuple[str | None, str | None]:
    remote = getattr(meta, "remote", None)
    return (remote.engine_id, remote.request_id) if remote is not None else (None, None)

"""What the worker-side facade records. Each method is called beside a stock call, never around it."""

from __future__ import annotations

from threading import current_thread
from time import perf_counter_ns
from typing import Any

from . import events
from .events import WORKER_STEP
from .guard import guarded
from .recorder import Recorder
from .scheduler_lens import StepMark


class NullWorkerLens:
    """Records nothing."""

    def begun(self) -> None: ...
    def loading(self, metadata: Any) -> None: ...
    def loaded(self) -> None: ...
    def saving(self) -> None: ...
    def saved(self) -> None: ...
    def polling(self) -> None: ...
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
        self._thread = ""
        self._mark: StepMark | None = None
        self._begun = self._load = self._loaded = self._save = self._save_ns = self._poll = 0

    # The stamps of a step wait in attributes and become one event when the step ends: attribute writes can't fail.

    def begun(self) -> None:
        """Stamp the begin of a step on this worker."""
        self._begun = perf_counter_ns()

    def loaded(self) -> None:
        """Stamp the end of the step's submissions."""
        self._loaded = perf_counter_ns()

    def saving(self) -> None:
        """Stamp the begin of the wait for saves."""
        self._save = perf_counter_ns()

    def saved(self) -> None:
        """Add the wait for saves to the step."""
        self._save_ns += perf_counter_ns() - self._save

    def polling(self) -> None:
        """Stamp the begin of the step's poll."""
        self._poll = perf_counter_ns()

    @guarded
    def loading(self, metadata: Any) -> None:
        """Stamp the begin of the step's submissions, and record which requests the scheduler handed to this worker."""
        self._load = self._loaded = perf_counter_ns()
        self._mark = getattr(metadata, "kvlens_step", None)
        finished = getattr(metadata, "push_finished_blocks", None)
        contexts = getattr(metadata, "kvlens_contexts", None)
        receiving = metadata.reqs_to_recv
        if receiving or finished or contexts:
            now = perf_counter_ns()
            requests = [(request_id, *_remote(meta)) for request_id, meta in receiving.items()]
            self._record((events.LOAD, now, requests, tuple(finished or ()), contexts, self._follows_peer))

    @guarded
    def reported(self, received: Any, sent: Any, failed: Any) -> None:
        """Record the step, and the transfers that this worker reports as complete."""
        self._end_step()
        if received or sent:
            now = perf_counter_ns()
            self._record((events.RESULTS, now, tuple(received or ()), tuple(sent or ()), frozenset(failed or ())))

    def _end_step(self) -> None:
        now = perf_counter_ns()
        if not self._thread:
            self._thread = current_thread().name
        self._record((
            WORKER_STEP, now, self._mark, self._begun, self._load, self._loaded, self._save_ns, self._poll or now,
            self._thread,
        ))  # fmt: skip
        self._mark = None
        self._begun = self._load = self._loaded = self._save_ns = self._poll = 0


def _remote(meta: Any) -> tuple[str | None, str | None, bool]:
    remote = getattr(meta, "remote", None)
    # As the stock worker decides whether it will report the request (vLLM before 0.29 has no such flag).
    awaits = bool(getattr(meta, "awaiting_kvs", True) or any(meta.local_block_ids))
    return (remote.engine_id, remote.request_id, awaits) if remote is not None else (None, None, awaits)

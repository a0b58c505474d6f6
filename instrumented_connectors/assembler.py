"""The background thread that turns recorded events into finished spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns, thread_time_ns
from typing import Protocol

from .events import Event
from .guard import report
from .recorder import Recorder

Handlers = Mapping[int, Callable[[Event], None]]


class SpanBuilder(Protocol):
    """A state machine fed with events: which codes it takes, and how many requests it had to give up."""

    evicted: int

    @property
    def handlers(self) -> Handlers: ...


class Assembler:
    """Drain a recorder and dispatch its events, on a thread of its own or on demand.

    Args:
        recorder: source of events.
        interval: seconds between two drains.
    """

    def __init__(self, recorder: Recorder, interval: float) -> None:
        self._recorder = recorder
        self._interval = interval
        self._handlers: dict[int, list[Callable[[Event], None]]] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._drain_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.busy_ns = 0
        self.after_drain: Callable[[], None] = lambda: None
        """Called after each drain, also of nothing, in the draining thread."""

    def add(self, builder: SpanBuilder) -> None:
        """Dispatch a builder's event codes to it."""
        for code, handler in builder.handlers.items():
            self._handlers.setdefault(code, []).append(handler)

    def start(self) -> None:
        """Start the thread (once)."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="kvlens-assembler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._interval)
            self._wake.clear()
            if not self._stop.is_set():
                self.drain()

    def wake(self) -> None:
        """Drain at once: for the rare event that can't wait for the interval."""
        self._wake.set()

    def drain(self) -> int:
        """Dispatch everything that is recorded by now; return the number of events."""
        total = 0
        with self._drain_lock:
            began = thread_time_ns()
            while events := self._recorder.drain():
                total += len(events)
                for event in events:
                    for handler in self._handlers.get(event[0], ()):
                        self._handle(handler, event)
            self.after_drain()
            self.busy_ns += thread_time_ns() - began
        return total

    def _handle(self, handler: Callable[[Event], None], event: Event) -> None:
        try:
            handler(event)
        except Exception as error:
            report(getattr(handler, "__qualname__", "assembler"), error)

    def restart(self) -> None:
        """Start anew in a forked child: the thread is gone and its lock may be held for ever."""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._drain_lock, self._thread = threading.Lock(), None
        self.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop the thread and dispatch what is left, waiting at most `timeout` seconds for the thread."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        self.drain()

    def now(self) -> int:
        """Return the recorder's clock (monotonic ns)."""
        return perf_counter_ns()

"""One exporter behind a bounded queue and a thread of its own, with an exact account of every span.

OpenTelemetry's BatchSpanProcessor drops silently and its flush waits as long as the exporter likes; this one counts and
gives up in time. Every span that was put in is queued, exported, dropped or failed, at any moment and in the end.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger("kvlens")


@dataclass(frozen=True)
class Limits:
    """Bounds of one queue: spans held at most (those in an export call included), spans per call, seconds of delay."""

    queue_size: int = 8192
    batch_size: int = 512
    delay_s: float = 1.0


@dataclass(frozen=True)
class ExportCounts:
    """What became of the spans given to one exporter.

    Attributes:
        queued: waiting, or in an export call that has not returned.
        exported: the exporter said that they arrived.
        dropped: never tried: the queue was full, or the process ended first.
        failed: tried, and not known to have arrived (a collector that answers too late may still have them).
    """

    queued: int = 0
    exported: int = 0
    dropped: int = 0
    failed: int = 0

    @property
    def produced(self) -> int:
        """Spans given to the exporter's queue."""
        return self.queued + self.exported + self.dropped + self.failed

    @property
    def lost(self) -> int:
        """Spans that are not known to have arrived and never will be."""
        return self.dropped + self.failed


class ExportQueue:
    """Queue spans for one exporter; `put` never blocks on the exporter.

    Args:
        name: the exporter's name, for logs and counters.
        make: creates the exporter; called on the queue's own thread, again after a fork or a `close`.
        limits: bounds of the queue.
    """

    def __init__(self, name: str, make: Callable[[], SpanExporter], limits: Limits) -> None:
        self.name = name
        self._make = make
        self._limits = limits
        self.restart()

    def restart(self) -> None:
        """Begin anew, as in a forked child: no thread, a lock that may be held for ever, spans of the parent."""
        self._changed = threading.Condition()
        self._queue: deque[ReadableSpan] = deque()
        self._in_flight = self._exported = self._dropped = self._failed = 0
        self._hurry = False
        self._worker: _Worker | None = None

    def counts(self) -> ExportCounts:
        """Return what became of the spans so far."""
        with self._changed:
            return ExportCounts(len(self._queue) + self._in_flight, self._exported, self._dropped, self._failed)

    def put(self, span: ReadableSpan) -> None:
        """Queue one span, or drop and count it when the queue is full."""
        with self._changed:
            waiting = len(self._queue)
            if waiting + self._in_flight >= self._limits.queue_size:
                self._dropped += 1
                return
            self._queue.append(span)
            if self._worker is None:
                self._worker = _Worker(self, self._make)
            if waiting == 0 or waiting + 1 == self._limits.batch_size:
                self._changed.notify_all()

    def hurry(self) -> None:
        """Ask for everything that is queued to be exported now; `wait_empty` waits for it."""
        with self._changed:
            self._hurry = bool(self._queue)
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; return whether that came true within `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queue or self._in_flight), timeout_s)

    def close(self, grace_s: float) -> None:
        """Drop what is still queued, interrupt and close the exporter; wait at most `grace_s` seconds for its answer.

        The account is final then. A later `put` starts again with a new exporter.
        """
        with self._changed:
            worker, ends = self._worker, monotonic() + grace_s
            self._dropped += len(self._queue)
            self._queue.clear()
            self._hurry = False
        if worker is None:
            return
        worker.close_exporter(grace_s)
        self.wait_empty(max(0.0, ends - monotonic()))
        with self._changed:
            self._failed += self._in_flight
            self._in_flight = 0
            # Spans that came in the meantime are the next worker's.
            self._worker = _Worker(self, self._make) if self._queue else None
            self._changed.notify_all()

    def take(self, worker: _Worker) -> list[ReadableSpan]:
        """Wait for the next batch of spans; empty when the worker has been replaced. For the worker."""
        with self._changed:
            due: float | None = None
            while worker is self._worker and not self._is_due(due):
                if due is None and self._queue:
                    due = monotonic() + self._limits.delay_s
                self._changed.wait(None if due is None else max(0.0, due - monotonic()))
            if worker is not self._worker:
                return []
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._limits.batch_size))]
            self._in_flight = len(batch)
            return batch

    def _is_due(self, due: float | None) -> bool:
        waiting = len(self._queue)
        if not waiting:
            self._hurry = False
            return False
        return self._hurry or waiting >= self._limits.batch_size or (due is not None and monotonic() >= due)

    def settle(self, worker: _Worker, arrived: int) -> None:
        """Account for the batch that `worker` took. For the worker."""
        with self._changed:
            # A worker that was given up in the middle of a call comes too late: its batch has been counted as failed.
            if worker is self._worker:
                self._exported += arrived
                self._failed += self._in_flight - arrived
                self._in_flight = 0
                self._changed.notify_all()


class _Worker:
    """The thread that exports, and the exporter that it made."""

    def __init__(self, queue: ExportQueue, make: Callable[[], SpanExporter]) -> None:
        self._queue = queue
        self._make = make
        self._exporter: SpanExporter | None = None
        self._complained = False
        threading.Thread(target=self._run, name=f"kvlens-export-{queue.name}", daemon=True).start()

    def _run(self) -> None:
        # An instrumented gRPC or HTTP client must not trace the export itself. The context is this thread's own.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        while batch := self._queue.take(self):
            self._queue.settle(self, self._export(batch))

    def _export(self, batch: list[ReadableSpan]) -> int:
        """Return how many of the batch's spans arrived."""
        before = arrived = 0
        try:
            if self._exporter is None:
                self._exporter = self._make()
            before = arrived = _exported_spans(self._exporter)
            if self._exporter.export(batch) is SpanExportResult.SUCCESS:
                return len(batch)
        except Exception as error:
            self._complain(error)
        if self._exporter is not None:
            # Some exporters know better than "all or nothing".
            arrived = _exported_spans(self._exporter)
        return min(len(batch), max(0, arrived - before))

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("kvlens: exporter %s fails: %s; further failures are only counted", self._queue.name, error)

    def close_exporter(self, grace_s: float) -> None:
        """Close the exporter from another thread, which also ends a retry in progress; wait `grace_s` at most."""
        exporter = self._exporter
        if exporter is None:
            return
        # On a thread of its own, because a hanging exporter may hang here too.
        thread = threading.Thread(target=self._shut_down, args=(exporter,), name="kvlens-export-close", daemon=True)
        thread.start()
        thread.join(grace_s)

    def _shut_down(self, exporter: SpanExporter) -> None:
        try:
            exporter.shutdown()
        except Exception as error:
            self._complain(error)


def _exported_spans(exporter: SpanExporter) -> int:
    count = getattr(exporter, "exported_spans", 0)
    return count if isinstance(count, int) else 0

"""Where work runs: CPU time by thread from the kernel's accounting, and the push writer's queues.

Work that leaves the engine thread still runs somewhere. Sampled in the assembler thread, at most once a second.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from . import catalogue as names
from . import compat, events
from .events import Event
from .identity import derive_trace_id
from .spans import SpanFactory

BUSY_NS, IDLE_NS = 1_000_000_000, 10_000_000_000
MAX_NAMES = 32
"""Entries of one sample at most; the ones with the least CPU time are put together as "others"."""
TASKS = Path("/proc/self/task")


def list_thread_ids(tasks: Path = TASKS) -> frozenset[int]:
    """Return the kernel's ids of this process's threads, none where there is no /proc."""
    try:
        return frozenset(int(name) for name in os.listdir(tasks))
    except OSError:
        return frozenset()


@dataclass(frozen=True)
class Usage:
    """CPU time and run-queue wait of one thread since its start (ns)."""

    cpu_ns: int
    wait_ns: int | None


def read_usage(tasks: Path, thread_id: int) -> Usage | None:
    """Return a thread's usage; None when it has ended. The wait is None where the kernel has no schedstat."""
    folder = tasks / str(thread_id)
    try:
        cpu, wait, *_ = (folder / "schedstat").read_text().split()
        return Usage(int(cpu), int(wait))
    except (OSError, ValueError):
        pass
    try:
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return Usage(ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), None)


class WriterWatch:
    """Reads a push worker's queues, through the optional attributes that compat.py names.

    Args:
        worker: vLLM's push worker.
        clock: monotonic ns.
    """

    def __init__(self, worker: Any, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._worker = worker
        self._clock = clock
        self._since: OrderedDict[str, int] = OrderedDict()
        self._beat = clock()
        call = worker.nixl_wrapper.get_new_notifs

        def get_new_notifs(*args: Any, **kwargs: Any) -> Any:
            self._beat = clock()
            return call(*args, **kwargs)

        worker.nixl_wrapper.get_new_notifs = get_new_notifs

    def on_load(self, event: Event) -> None:
        """Remember when the scheduler handed a request to the writer."""
        for request_id in (*(request[0] for request in event[2]), *event[3]):
            self._remember(request_id, event[1])

    def _remember(self, request_id: str, at: int) -> int:
        since = self._since.setdefault(request_id, at)
        while len(self._since) > 4096:
            self._since.popitem(last=False)
        return since

    def read(self) -> dict[str, int]:
        """Return depths, age of the oldest item and heartbeat (ns), as far as this vLLM has them."""
        now = self._clock()
        queues = [self._get(name) for name in compat.WRITER_QUEUES]
        unmatched, registrations = self._get(compat.WRITER_UNMATCHED), self._get(compat.WRITER_REGISTRATIONS)
        forwarded = self._get(compat.WRITER_FORWARDED)
        found: dict[str, int] = {"writer_heartbeat_ns": now - self._beat}
        # The writer changes all of this meanwhile: a figure that can't be read is left out of this sample.
        with suppress(Exception):
            found["writer_queue"] = sum(queue.qsize() for queue in queues if queue is not None)
        for name, table in (("writer_unmatched", unmatched), ("writer_registrations", registrations)):
            with suppress(TypeError):
                found[name] = len(table)
        with suppress(AttributeError):
            found["writer_forwarded"] = forwarded.qsize()
        oldest = []
        for table in (unmatched, registrations, *(getattr(queue, "queue", None) for queue in queues)):
            with suppress(Exception):
                first = next(iter(table), None)
                if first is not None:
                    oldest.append(self._remember(first if isinstance(first, str) else str(first[0]), now))
        found["writer_oldest_ns"] = now - min(oldest, default=now)
        return found

    def _get(self, name: str) -> Any:
        return getattr(self._worker, name, None)


class ThreadSampler:
    """Emit a `threads.sample` span per sample.

    Args:
        factory: makes the spans.
        steps: steps with work so far: an idle engine is sampled less often.
        tasks: the kernel's folder of this process's threads.
    """

    evicted = 0

    def __init__(self, factory: SpanFactory, steps: Callable[[], int], tasks: Path = TASKS) -> None:
        self._factory = factory
        self._steps = steps
        self._tasks = tasks
        self.rank: int | None = None
        self._agent_threads: frozenset[int] = frozenset()
        self._writer: WriterWatch | None = None
        self.handlers = {events.LOAD: self._on_load}
        self.restart()

    def restart(self) -> None:
        """Begin anew, as in a forked child."""
        self._last: dict[int, Usage] = {}
        self._labels: dict[int, tuple[str, str]] = {}
        self._at = self._stepped = 0

    def watch_worker(self, worker: Any, threads_before: frozenset[int]) -> None:
        """Name the threads that came with the worker's agent, and read its writer's queues.

        Args:
            worker: vLLM's worker.
            threads_before: ids of the threads that were there before it.
        """
        python = {thread.native_id for thread in threading.enumerate()}
        self._agent_threads = list_thread_ids(self._tasks) - threads_before - python
        if hasattr(worker, compat.WRITER_THREAD):
            self._writer = WriterWatch(worker)

    def _on_load(self, event: Event) -> None:
        if self._writer is not None:
            self._writer.on_load(event)

    def tick(self, now: int) -> None:
        """Take a sample when one is due."""
        steps = self._steps()
        if now - self._at < (BUSY_NS if steps != self._stepped else IDLE_NS):
            return
        usages = self._read()
        begin, self._at, self._stepped = self._at, now, steps
        if self._last and begin:
            self._emit(begin, now, usages)
        self._last = usages

    def _read(self) -> dict[int, Usage]:
        found = {}
        for thread_id in list_thread_ids(self._tasks):
            usage = read_usage(self._tasks, thread_id)
            if usage is not None:
                found[thread_id] = usage
        return found

    def _emit(self, begin: int, end: int, usages: dict[int, Usage]) -> None:
        entries = self._group(usages)
        if not entries:
            return
        has_wait = all(usage.wait_ns is not None for usage in usages.values())
        kinds, labels = zip(*entries, strict=True)
        counts, cpu, wait = zip(*entries.values(), strict=True)
        attributes: dict[str, Any] = {
            "names": labels, "kinds": kinds, "threads": counts, "cpu_ns": cpu, "wait_ns": wait if has_wait else None,
            "source": "schedstat" if has_wait else "stat", "rank": self.rank,
            **(self._writer.read() if self._writer is not None else {}),
        }  # fmt: skip
        trace_id = derive_trace_id(f"threads.sample {self._factory.engine_id} {os.getpid()} {end}")
        self._factory.emit(names.THREADS_SAMPLE, trace_id, begin, end, attributes)

    def _group(self, usages: dict[int, Usage]) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Return (kind, name) -> threads, CPU and wait since the last sample; threads that did nothing are left out."""
        python = {t.native_id: t.name for t in threading.enumerate() if t.native_id is not None}
        self._labels = {t: label for t, label in self._labels.items() if t in usages and t not in python}
        groups: dict[tuple[str, str], tuple[int, int, int]] = {}
        for thread_id, usage in usages.items():
            before = self._last.get(thread_id, Usage(0, 0))
            cpu, wait = usage.cpu_ns - before.cpu_ns, (usage.wait_ns or 0) - (before.wait_ns or 0)
            if cpu <= 0 and wait <= 0:
                continue
            label = _label(python[thread_id]) if thread_id in python else self._label_native(thread_id)
            count, cpu_sum, wait_sum = groups.get(label, (0, 0, 0))
            groups[label] = (count + 1, cpu_sum + max(0, cpu), wait_sum + max(0, wait))
        if len(groups) <= MAX_NAMES:
            return groups
        ordered = sorted(groups.items(), key=lambda item: item[1][1], reverse=True)
        rest = [sum(column) for column in zip(*(figures for _, figures in ordered[MAX_NAMES - 1 :]), strict=True)]
        return {**dict(ordered[: MAX_NAMES - 1]), ("native", "others"): (rest[0], rest[1], rest[2])}

    def _label_native(self, thread_id: int) -> tuple[str, str]:
        label = self._labels.get(thread_id)
        if label is None:
            try:
                name = (self._tasks / str(thread_id) / "comm").read_text().strip()
            except OSError:
                name = "ended"
            label = self._labels[thread_id] = ("nixl" if thread_id in self._agent_threads else "native", name)
        return label


_KINDS = (
    ("MainThread", "engine"),
    ("nixl-push-writer", "push_writer"),
    ("kvlens-export", "exporter"),
    ("kvlens", "kvlens"),
)


def _label(name: str) -> tuple[str, str]:
    """Return (kind, name) of a Python thread; numbers of pool threads are dropped."""
    kind = next((kind for prefix, kind in _KINDS if name.startswith(prefix)), "python")
    return kind, name.rstrip("0123456789_-") or name

"""kvlens's own figures: what it recorded, dropped, swallowed and used, per process, as increments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .. import guard
from ..pipeline import Pipeline
from ..sinks import Sinks
from . import catalogue as table
from .catalogue import Metric

Total = tuple[Metric, tuple[str, ...], float]


class _Recorder(Protocol):
    recorded: int
    dropped: int


class _Assembler(Protocol):
    busy_ns: int


class _Factory(Protocol):
    emitted: int


class Evicting(Protocol):
    """Gives up the oldest when there are too many, and counts them."""

    evicted: int


def read_totals(
    process: str,
    recorder: _Recorder,
    assembler: _Assembler,
    factory: _Factory,
    builders: Sequence[Evicting],
) -> Iterator[Total]:
    """Yield this process's totals since its start."""
    yield table.EVENTS, (process, "recorded"), recorder.recorded
    yield table.EVENTS, (process, "dropped"), recorder.dropped
    yield table.SPANS, (process, "all", "produced"), factory.emitted
    yield table.EVICTED, (process,), sum(builder.evicted for builder in builders)
    yield table.GUARD_ERRORS, (process,), sum(guard.errors.values())
    yield table.OVERHEAD_SECONDS, (process,), assembler.busy_ns / 1e9


def read_spans(process: str, pipeline: Pipeline) -> Iterator[Total]:
    """Yield what became of this process's spans, by exporter."""
    for exporter, counts in pipeline.counters().items():
        for state in ("exported", "dropped", "failed"):
            yield table.SPANS, (process, exporter, state), getattr(counts, state)


def read_sampling(process: str, sinks: Sinks) -> Iterator[Total]:
    """Yield how many spans the sampler and the level of detail left out, which is no loss."""
    if sinks.sampler is not None:
        yield table.SPANS, (process, "all", "sampled_out"), sinks.sampler.sampled_out
    if sinks.detail is not None:
        yield table.SPANS, (process, "all", "filtered"), sinks.detail.filtered


def read_queues(process: str, rank: str, pipeline: Pipeline) -> Iterator[Total]:
    """Yield how many spans wait for each exporter."""
    for exporter, counts in pipeline.counters().items():
        yield table.SPANS_QUEUED, (process, rank, exporter), counts.queued


class Increments:
    """Turn totals into increments.

    Args:
        read: yields the totals.
    """

    def __init__(self, read: Callable[[], Iterator[Total]]) -> None:
        self._read = read
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}

    def measure(self) -> Iterator[Total]:
        """Yield what was added since the last call; a total that fell back (a fork) starts anew."""
        for metric, labels, total in self._read():
            key = (metric.name, labels)
            before = self._seen.get(key, 0)
            self._seen[key] = total
            if total != before:
                yield metric, labels, total - before if total > before else total

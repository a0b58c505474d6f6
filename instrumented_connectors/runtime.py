"""What one process needs to record: clock, recorder, assembler and pipeline, shared by an engine's connector roles."""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AttributeValue

from . import catalogue
from .assembler import Assembler, SpanBuilder
from .clock import Clock
from .compat import distribution_version, vllm_version
from .decisions import DecisionSpans
from .guard import guard
from .leases import LeaseLedger
from .metrics.collect import Collector
from .metrics.facts import Cause
from .metrics.own import Evicting, Increments, Total, read_queues, read_sampling, read_spans, read_totals
from .pipeline import Pipeline, build_pipeline
from .recorder import Recorder
from .request_spans import RequestEmitter
from .scheduler_spans import SchedulerSpans
from .settings import DRAIN_INTERVAL_S, Settings
from .sinks import build_sinks
from .spans import SpanFactory
from .step_records import StepRecords
from .thread_samples import ThreadSampler
from .traces import TraceBook
from .transfer_spans import TransferSpans
from .transfer_tables import decode_registration

logger = logging.getLogger("kvlens")

SERVICE_NAMES = {"prefill": "vllm-prefill", "decode": "vllm-decode", "both": "vllm-prefill-decode"}


@dataclass(frozen=True)
class EngineIdentity:
    """Which engine this process belongs to.

    Attributes:
        engine_id: the connector's engine id.
        role: prefill, decode or both.
        mode: push, pull or bidirectional.
    """

    engine_id: str
    role: str
    mode: str


class Runtime:
    """Recording state of one engine in one process."""

    def __init__(self, identity: EngineIdentity, settings: Settings, pipeline: Pipeline | None = None) -> None:
        self.identity = identity
        self.settings = settings
        self.clock = Clock()
        self.recorder = Recorder(settings.capacity)
        self.pipeline = build_pipeline(settings.exporters) if pipeline is None else pipeline
        self.assembler = Assembler(self.recorder, DRAIN_INTERVAL_S)
        traces = TraceBook(settings.max_requests)
        self.sinks = build_sinks(settings.sampling, self.pipeline, traces.flags, settings.max_requests)
        causes: dict[str, Cause] = {}
        # Metrics see every span, whatever the sampling.
        self.metrics = Collector(
            self.sinks.first, self.clock, identity, causes=causes, limit=settings.max_requests,
            decode_registration=decode_registration,
        )  # fmt: skip
        factory = SpanFactory(self.metrics, _resource(identity, self.clock), self.clock, identity.engine_id)
        self._factory = factory
        follows = identity.mode != "push"
        self.leases = LeaseLedger(
            RequestEmitter(factory, traces), traces, causes, settings.max_requests, self.metrics.facts
        )  # fmt: skip
        self.decisions = DecisionSpans(
            RequestEmitter(factory, traces), identity.engine_id, identity.mode, settings.max_requests,
            self.metrics.facts,
        )  # fmt: skip
        self._scheduler = SchedulerSpans(
            factory, traces, settings.max_requests, leases=self.leases, decisions=self.decisions,
            follows_peer=follows, writes=identity.mode == "push",
        )  # fmt: skip
        self.transfers = TransferSpans(factory, traces, causes, settings.max_requests)
        # The worker's events come first: they say why a lease ended before the scheduler's say that it did.
        self.assembler.add(self.transfers)
        self.assembler.add(self.decisions)
        self.assembler.add(self._scheduler)
        self.assembler.add(self.metrics)
        self.steps = StepRecords(factory, settings.max_requests)
        self.threads = ThreadSampler(factory, lambda: self.steps.steps)
        self.assembler.add(self.steps)
        self.assembler.add(self.threads)
        self.assembler.after_drain = self._after_drain
        self._builders: list[Evicting] = [self.transfers, self._scheduler, self.decisions, self.leases, self.steps]
        self.metrics.own = self._make_own_figures(factory)
        if self.sinks.sampler is not None:
            self.assembler.add(self.sinks.sampler)
        self.assembler.start()
        # Last in, first out: the exporters are closed after what is left has been exported.
        atexit.register(self.pipeline.shutdown)
        atexit.register(self.close)

    @property
    def outbox(self) -> deque[tuple[str, str | None]] | None:
        """Verdicts of this process's sampler, None when every request is taken."""
        return self.sinks.sampler.outbox if self.sinks.sampler is not None else None

    def add_builder(self, builder: SpanBuilder) -> None:
        """Dispatch events to one more builder, and count what it gives up."""
        self.assembler.add(builder)
        self._builders.append(builder)

    def _after_drain(self) -> None:
        self.metrics.publish()
        with guard("runtime.steps"):
            now = self.assembler.now()
            self.steps.tick(now)
            self.threads.tick(now)

    def _make_own_figures(self, factory: SpanFactory) -> Callable[[], Iterator[Total]]:
        increments = Increments(
            lambda: chain(
                read_totals(self.metrics.process, self.recorder, self.assembler, factory, self._builders),
                read_spans(self.metrics.process, self.pipeline),
                read_sampling(self.metrics.process, self.sinks),
            )
        )
        return lambda: chain(
            increments.measure(), read_queues(self.metrics.process, str(self.metrics.rank), self.pipeline)
        )

    def after_fork(self) -> None:
        """Begin anew in a forked child: its threads are gone and the parent's events are the parent's."""
        self.recorder.clear()
        self._factory.set_process(os.getpid())
        self.metrics.restart()
        self.steps.restart()
        self.threads.restart()
        self.sinks.first.restart()
        self.assembler.restart()

    def close(self) -> None:
        """Export everything, within a bound; safe to call more than once."""
        with guard("runtime.close"):
            self.assembler.stop()
            self.metrics.facts.close()
            self._scheduler.close(self.assembler.now())
            self.steps.close()
            self.sinks.first.close()
            if self.recorder.dropped:
                logger.warning("kvlens: %d events dropped by a full recorder", self.recorder.dropped)


_runtimes: dict[str, Runtime] = {}


def get_runtime(identity: EngineIdentity, settings: Settings) -> Runtime:
    """Return this process's runtime of an engine: scheduler and worker of one process share it."""
    runtime = _runtimes.get(identity.engine_id)
    if runtime is None:
        if not _runtimes:
            os.register_at_fork(after_in_child=_after_fork)
        runtime = _runtimes[identity.engine_id] = Runtime(identity, settings)
    return runtime


def _after_fork() -> None:
    for runtime in _runtimes.values():
        with guard("runtime.fork"):
            runtime.after_fork()


def _resource(identity: EngineIdentity, clock: Clock) -> Resource:
    # Resource.create adds OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which win over the defaults here.
    defaults: dict[str, AttributeValue] = {
        "service.name": SERVICE_NAMES.get(identity.role, "vllm"),
        "service.instance.id": identity.engine_id,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        "kvlens.role": identity.role,
        "kvlens.mode": identity.mode,
        "kvlens.schema": catalogue.SCHEMA,
        "kvlens.version": distribution_version("kvlens"),
        "vllm.version": vllm_version(),
        "nixl.version": distribution_version("nixl", "nixl-cu12", "nixl-cu13"),
        "kvlens.clock.boot_id": clock.boot_id,
        "kvlens.clock.anchor_unix_ns": clock.anchor_unix_ns,
        "kvlens.clock.anchor_perf_ns": clock.anchor_perf_ns,
    }
    environment = Resource.create({})
    named = {key: value for key, value in environment.attributes.items() if key in _from_environment()}
    return environment.merge(Resource({**defaults, **named}))


def _from_environment() -> set[str]:
    pairs = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    keys = {pair.split("=", 1)[0].strip() for pair in pairs if "=" in pair}
    return keys | ({"service.name"} if os.environ.get("OTEL_SERVICE_NAME") else set())

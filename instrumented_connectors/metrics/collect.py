"""The accumulator: sees every finished span and event on the background thread, hands increments to the engine thread.

An engine thread only asks whether something is ready (one look at a deque) and takes it; about once a second there is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Protocol

from opentelemetry.sdk.trace import ReadableSpan

from .. import catalogue as spans
from .. import events
from ..clock import Clock
from ..compat import PUSH_REGISTRATION_PREFIX
from ..events import Event
from ..guard import guard
from ..request_state import FAILED
from ..spans import SpanSink
from . import catalogue as table
from .classes import ClassSeconds
from .facts import Cause, FactBook, FactGatherer
from .held import HeldBlocks
from .measure import measure
from .own import Total
from .waiting import PushWaiting
from .window import LabelBounds, Payload, Window, merge

INTERVAL_NS = 1_000_000_000
"""Time between two deliveries, so that not every step carries stats."""


class Identity(Protocol):
    """Which engine this is."""

    @property
    def engine_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def mode(self) -> str: ...


class Collector:
    """Accumulate the metrics of one engine in one process; a span sink and an event builder at once.

    Args:
        sink: takes the spans afterwards.
        clock: maps monotonic stamps to Unix time.
        identity: engine id, role and mode.
        causes: why leases ended, filled by the worker's span builder.
        limit: requests followed at most.
        decode_registration: reads a push registration's payload.
    """

    evicted = 0

    def __init__(
        self,
        sink: SpanSink,
        clock: Clock,
        identity: Identity,
        *,
        causes: Mapping[str, Cause],
        limit: int,
        decode_registration: Callable[[bytes], dict[str, Any] | None],
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._engine_id, self._role, self._mode = identity.engine_id, identity.role, identity.mode
        self._causes = causes
        self._limit = limit
        self._decode_registration = decode_registration
        self._now = now
        self.process, self.rank, self.backend, self.version = "worker", 0, "unknown", ""
        self.own: Callable[[], Iterator[Total]] = lambda: iter(())
        self.facts = FactBook(limit)
        self._bounds = LabelBounds()
        self._window = Window(self._bounds)
        self._held = HeldBlocks(limit, consumes=identity.role != "prefill")
        self._classes = ClassSeconds(identity.mode, self.facts, self._add)
        self._waiting = PushWaiting(limit)
        self._gatherer = FactGatherer(limit)
        self._abandoned: OrderedDict[str, None] = OrderedDict()  # aborted while their KV was still to come
        self._dispatchable: OrderedDict[str, int] = OrderedDict()  # request -> Unix ns since when it could be posted
        self._peers: OrderedDict[str, tuple[int | None, int | None]] = OrderedDict()
        self._learned: dict[str, tuple[int | None, int | None]] = {}
        self._slot: deque[Payload] = deque(maxlen=1)
        self._published = self._now()
        self._touched = self._forced = False
        self.handlers: dict[int, Callable[[Event], None]] = {
            events.ARRIVE: self._on_arrive,
            events.ALLOC: self._on_alloc,
            events.TOLD: self._on_told,
            events.FINISH: self._on_finish,
            events.FACTS: self._on_facts,
            events.STEP_END: self._on_step_end,
            events.LOAD: self._on_load,
            events.PREP: self._on_prep,
            events.NOTIFIED: self._on_notified,
            events.RESULTS: self._on_results,
            events.READ_CHECK: self._on_read_check,
        }

    # -- delivery: engine thread -----------------------------------------------------------------------------

    def take(self) -> Payload | None:
        """Return what is ready for delivery, once; None most of the time."""
        slot = self._slot
        if not slot:
            return None
        try:
            return slot.popleft()
        except IndexError:  # the background thread took it back to add to it
            return None

    # -- delivery: background thread -----------------------------------------------------------------------------

    def force(self) -> None:
        """Let the next `publish` deliver whatever there is."""
        self._forced = True

    def publish(self) -> None:
        """Make the increments ready, at most once per interval (called after each drain)."""
        now = self._now()
        with guard("metrics.facts"):
            self.facts.tick(now)
        forced, self._forced = self._forced, False
        # An idle engine takes nothing: what lies there already says all, until something happens.
        idle = not self._touched and bool(self._slot)
        if forced or (now - self._published >= INTERVAL_NS and not idle):
            with guard("metrics.publish"):
                self._publish(now, forced)

    def _publish(self, now: int, forced: bool) -> None:
        self._published, self._touched = now, False
        for metric, labels, value in self._measure_state(now):
            self._window.add(metric, labels, value)
        payload = self._window.to_payload()
        self._window = Window(self._bounds)
        if facts := self._gatherer.take():
            payload["r"] = facts
        if learned := self._learned:
            payload["o"], self._learned = learned, {}
        if forced:
            payload["f"] = True
        with suppress(IndexError):
            payload = merge(self._slot.popleft(), payload)
        if forced or any(payload[part] for part in ("c", "g", "h")) or facts or learned:
            self._slot.append(payload)

    def _measure_state(self, now: int) -> Iterator[Total]:
        if self.process == "scheduler":
            yield from self._held.measure(now)
            yield table.ENGINE_INFO, (self._engine_id, self._role, self._mode, self.backend, self.version), 1
        yield from self._waiting.measure(now, str(self.rank))
        yield from self.own()

    def restart(self) -> None:
        """Start anew in a forked child: what the parent saw is the parent's."""
        self._window = Window(self._bounds)
        self._slot.clear()
        self._gatherer.take()

    def _add(self, metric: table.Metric, labels: tuple[str, ...], value: float) -> None:
        self._touched = True
        self._window.add(metric, labels, value)

    # -- spans -------------------------------------------------------------------------------------------------------

    def on_end(self, span: ReadableSpan) -> None:
        """Measure a finished span and hand it on."""
        with guard("metrics.span"):
            self._measure_span(span)
        self._sink.on_end(span)

    def _measure_span(self, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        start, end = span.start_time or 0, span.end_time or 0
        for observation in measure(span.name, end - start, attributes, mode=self._mode, backend=self.backend):
            self._add(*observation)
        request_id = attributes.get(spans.PREFIX + "request_id")
        if isinstance(request_id, str):
            self._classes.add_span(span.name, request_id, end - start)
            self._gather(span.name, request_id, start, end, attributes)

    def _gather(self, name: str, request_id: str, start: int, end: int, attributes: Mapping[str, Any]) -> None:
        ok = attributes.get(spans.PREFIX + "outcome")
        if name == spans.PAIRING and ok == "paired":
            self._put(request_id, end)
            if attributes.get(spans.PREFIX + "late_side") == "decode":
                self._gatherer.coordinate(request_id, end - start)
        elif name == spans.POST and ok == "ok":
            since = self._dispatchable.pop(request_id, start)
            self._add(table.SEGMENT_SECONDS, (self._mode, table.DISPATCH), max(0, start - since) / 1e9)
            self._gatherer.coordinate(request_id, end - since)
        elif name == spans.WIRE and ok == "ok":
            self._gatherer.transfer(request_id, start, end)
        elif name == spans.COMPLETION and self._mode == "push":
            self._gatherer.coordinate(request_id, end - start)
        elif name == spans.COMPLETION and ok == "failed":
            self._gatherer.blame(request_id, str(attributes.get(spans.PREFIX + "reason") or ""))

    def _put(self, request_id: str, unix_ns: int) -> None:
        self._dispatchable[request_id] = unix_ns
        while len(self._dispatchable) > self._limit:
            self._dispatchable.popitem(last=False)

    # -- scheduler events --------------------------------------------------------------------------------------------

    def _on_arrive(self, event: Event) -> None:
        _, _, _, _, is_prefill, is_decode, peer_engine, *_ = event
        if self._role == "decode" and is_decode and not is_prefill and peer_engine is None:
            self._add(table.EXPECTED_REMOTE_MISSING, (), 1)

    def _on_alloc(self, event: Event) -> None:
        _, at, request_id, external_tokens, blocks = event
        # vLLM calls it again, without external tokens, when the KV has arrived.
        if external_tokens:
            self._held.reserve(request_id, at, blocks)

    def _on_told(self, event: Event) -> None:
        _, at, received, sent, failed = event
        self._touched = True
        for request_id in received:
            if self._abandoned.pop(request_id, self) is None:
                self._add(table.REMOTE_LOADS, ("failed" if request_id in failed else "ok",), 1)
            since = self._held.arrive(request_id)
            if since is not None:
                self._classes.receive(request_id, at, at - since)
        for request_id in sent:
            self._held.release(request_id)
            self._classes.send(request_id, at)

    def _on_finish(self, event: Event) -> None:
        _, at, request_id, status, _computed, _output, blocks, kept = event
        self._touched = True
        # One that failed has a span of its wait already.
        if self._held.finish(request_id, at, blocks, kept=kept) and status not in FAILED:
            self._abandoned[request_id] = None
            while len(self._abandoned) > self._limit:
                self._abandoned.popitem(last=False)

    def _on_facts(self, event: Event) -> None:
        for facts in event[2]:
            self.facts.add(facts)

    def _on_step_end(self, event: Event) -> None:
        self.facts.steps += 1

    # -- worker events -----------------------------------------------------------------------------------------------

    def _on_load(self, event: Event) -> None:
        _, at, receiving, finished, *_ = event
        for request_id, *_, awaits in receiving:
            if awaits and self._mode != "push":
                self._put(request_id, self._clock.to_unix(at))
        for request_id in finished:
            self._touched = True
            self._waiting.finish(request_id, at)

    def _on_prep(self, event: Event) -> None:
        _, _, _, _, operation, _, notification, current, *_ = event
        if operation == "WRITE":
            peer = notification.rsplit(b":", 1)[0].decode("utf-8", "replace") if notification else None
            self._waiting.post(current, peer)

    def _on_notified(self, event: Event) -> None:
        _, at, messages, _ = event
        for message in messages:
            if message.startswith(PUSH_REGISTRATION_PREFIX):
                data = self._decode_registration(message)
                if data is not None:
                    self._touched = True
                    self._waiting.register(data["request_id"], at)

    def _on_read_check(self, event: Event) -> None:
        _, _, _, engine_id, offset, blocks, _ = event
        peer = (None if offset is None else round(offset * 1e9), blocks)
        if self._peers.get(engine_id) != peer:
            self._learned[engine_id] = self._peers[engine_id] = peer
            while len(self._peers) > self._limit:
                self._peers.popitem(last=False)

    def _on_results(self, event: Event) -> None:
        _, _, received, sent, _failed = event
        self._touched = True
        for request_id in received:
            self._gatherer.report(request_id)
            self._dispatchable.pop(request_id, None)
        for request_id in sent:
            self._gatherer.report(request_id, self._causes.get(request_id, Cause("released")))
            self._waiting.drop(request_id)

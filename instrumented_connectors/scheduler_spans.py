"""Scheduler events of one engine -> request, admission, remote wait, queue, first step and lease spans."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.trace import SpanKind

from . import catalogue as names
from . import events
from .decisions import DecisionSpans
from .events import Event
from .identity import derive_trace_id, request_key
from .leases import LeaseLedger
from .request_spans import RequestEmitter, peer_root_id, with_request
from .request_state import FAILED, RequestState
from .reuse_table import (
    AWAITING_NEXT_TURN,
    FINISHED_AWAITING_TRANSFER,
    RESERVED_AWAITING_READ,
    RESERVED_AWAITING_WRITE,
)  # fmt: skip
from .spans import Attributes, SpanFactory
from .traces import TraceBook

# More steps than this can't be in flight (vLLM's batch queue holds as many as there are pipeline stages).
MAX_OPEN_STEPS = 64
# A step's event goes on with these two after its number, the stamp of its metadata and a count.
_GROWTH = 3
Growth = tuple[Sequence[str], Iterable[str], Sequence[Sequence[Sequence[int]] | None]]
"""Running requests of a step, those that were resumed (their blocks are all new), new blocks of each."""


class SchedulerSpans:
    """Follow requests through one engine's scheduler.

    Args:
        factory: makes the spans.
        traces: trace identity of requests.
        limit: requests followed at most; the oldest are given up and counted in `evicted`.
        leases: blocks that are held without being computed on.
        decisions: follows what prefill requests might fetch.
        follows_peer: a decoding request takes its trace from the prefill request that it reads (pull).
        writes: the other side writes into reserved blocks (push).
    """

    def __init__(
        self,
        factory: SpanFactory,
        traces: TraceBook,
        limit: int,
        *,
        leases: LeaseLedger,
        decisions: DecisionSpans,
        follows_peer: bool = False,
        writes: bool = False,
    ) -> None:
        self._emitter = RequestEmitter(factory, traces)
        self._leases, self._decisions = leases, decisions
        self._follows_peer = follows_peer
        self._reserved_for = RESERVED_AWAITING_WRITE if writes else RESERVED_AWAITING_READ
        self._factory = factory
        self._traces = traces
        self._limit = limit
        self._requests: OrderedDict[str, RequestState] = OrderedDict()
        self._prompting: dict[str, RequestState] = {}
        self._open_steps: deque[list[RequestState]] = deque(maxlen=MAX_OPEN_STEPS)
        self.evicted = 0
        self.handlers = {
            events.ARRIVE: self._on_arrive,
            events.MATCH: self._on_match,
            events.ALLOC: self._on_alloc,
            events.STEP: self._on_step,
            events.STEP_END: self._on_step_end,
            events.TOLD: self._on_told,
            events.FINISH: self._on_finish,
        }

    def _on_arrive(self, event: Event) -> None:
        _, at, request_id, prompt_tokens, is_prefill, is_decode, peer_engine, peer_request, context = event
        if context is not None:
            self._traces.set_context(request_id, context)
        if is_decode and not self._follows_peer:
            # In push the router invents the remote id; P's own id is known to P's pairing span only.
            peer_request = None
        if is_decode and peer_request:
            self._traces.set_alias(request_id, peer_request)
        if not (is_prefill or is_decode):
            return
        state = RequestState(request_id, is_prefill, at, prompt_tokens, peer_engine, peer_request)
        self._requests[request_id] = self._prompting[request_id] = state
        while len(self._requests) > self._limit:
            old, _ = self._requests.popitem(last=False)
            self._prompting.pop(old, None)
            self.evicted += 1

    def _on_match(self, event: Event) -> None:
        _, _, request_id, local_tokens, external_tokens = event
        state = self._requests.get(request_id)
        if state is None or state.allocated is not None:
            return
        state.attempts += 1
        state.local_tokens = local_tokens
        state.external_tokens = external_tokens or 0

    def _on_alloc(self, event: Event) -> None:
        _, at, request_id, external_tokens, blocks = event
        state = self._requests.get(request_id)
        if state is None:
            return
        state.usage.hold(at, blocks)
        # vLLM calls it again when the KV has arrived; admission is the first call.
        if state.allocated is not None:
            return
        state.allocated, state.external_tokens, state.blocks = at, external_tokens, blocks
        if external_tokens == 0:
            state.told = at
            state.usage.run(at)
        else:
            self._leases.open(request_id, self._reserved_for, at, blocks)
        if state.is_prefill:
            self._decisions.allocated(state)
        else:
            self._emit(state, names.DECODE_ADMISSION, state.arrived, at, {"attempts": state.attempts})

    def _on_told(self, event: Event) -> None:
        _, at, received, sent, failed = event
        for request_id in received:
            self._leases.receive(request_id, at, failed=request_id in failed)
            state = self._requests.get(request_id)
            if state is None or state.allocated is None or state.told is not None:
                continue
            self._end_receive(state, at, failed=request_id in failed)
        for request_id in sent:
            self._leases.release(request_id, at)

    def _emit_endless_wait(self, state: RequestState, at: int, outcome: str) -> None:
        """Say of a readback that nobody heard the end of how long it was waited for: nothing else names such a request.

        A decode request's admission says that already.
        """
        assert state.allocated is not None
        attributes: Attributes = {
            "outcome": outcome, "blocks": state.blocks, "external_tokens": state.external_tokens,
        }  # fmt: skip
        self._emit(state, names.PREFILL_REMOTE_WAIT, state.allocated, at, attributes)

    def _end_receive(self, state: RequestState, at: int, *, failed: bool) -> None:
        """Note that the KV is here or won't come (by policy the request then ends before that is told)."""
        assert state.allocated is not None
        state.told, state.failed = at, failed
        state.usage.run(at)
        self._emit_remote_wait(state, state.allocated, at)
        self._decisions.told(state, at)

    def _emit_remote_wait(self, state: RequestState, start: int, end: int) -> None:
        attributes: dict[str, str | int] = {"outcome": "failed" if state.failed else "ok"}
        name = names.DECODE_REMOTE_WAIT
        if state.is_prefill:
            name = names.PREFILL_REMOTE_WAIT
            attributes |= {"blocks": state.blocks, "external_tokens": state.external_tokens}
        self._emit(state, name, start, end, attributes, error=state.failed)

    def _on_step(self, event: Event) -> None:
        _, at, scheduled, new_requests, *rest = event
        if len(rest) > _GROWTH:
            self._grow(at, *rest[_GROWTH:])
        completing: list[RequestState] = []
        if self._prompting:
            known = {new.req_id: new.num_computed_tokens for new in new_requests}
            # A set of keys intersects by its smaller side: cheap for large decode batches.
            for request_id in self._prompting.keys() & scheduled.keys():
                state = self._prompting[request_id]
                if state.scheduled is None:
                    self._on_first_scheduled(state, at, known.get(request_id))
                state.steps += 1
                state.computed += scheduled[request_id]
                state.remaining -= scheduled[request_id]
                if state.remaining <= 0:
                    completing.append(state)
                    del self._prompting[request_id]
        self._open_steps.append(completing)

    def _grow(self, at: int, preempted: Iterable[str], growth: Growth | None) -> None:
        """Follow the blocks of running requests: most steps give a block to few of them."""
        for request_id in preempted:
            if (state := self._requests.get(request_id)) is not None:
                state.usage.hold(at, 0)
        if growth is None:
            return
        request_ids, resumed, new_blocks = growth
        for request_id, groups in zip(request_ids, new_blocks, strict=False):
            if groups is None or (state := self._requests.get(request_id)) is None:
                continue
            before = 0 if request_id in resumed else state.usage.blocks
            state.usage.hold(at, before + sum(map(len, groups)))

    def _on_first_scheduled(self, state: RequestState, at: int, computed: int | None) -> None:
        state.scheduled = at
        already = state.local_tokens + state.external_tokens if computed is None else computed
        state.remaining = max(1, state.prompt_tokens - already)
        if state.is_prefill:
            self._emit(state, names.PREFILL_QUEUE, state.arrived, at, {})
            return
        ready = state.told if state.told is not None else state.allocated
        self._emit(state, names.DECODE_QUEUE, at if ready is None else min(ready, at), at, {})

    def _on_step_end(self, event: Event) -> None:
        # Steps end in the order in which they began, also with several in flight.
        if not self._open_steps:
            return
        for state in self._open_steps.popleft():
            state.first_token = event[1]
            if not state.is_prefill and state.scheduled is not None:
                self._emit(state, names.DECODE_FIRST_STEP, state.scheduled, event[1], {"steps": state.steps})
            if state.finish is not None and state.request_id in self._requests:
                self._finish(state)

    def _on_finish(self, event: Event) -> None:
        _, at, request_id, status, _computed, output_tokens, blocks, held = event
        state = self._requests.get(request_id)
        if held:
            is_prefill = state is None or state.is_prefill
            reason = FINISHED_AWAITING_TRANSFER if is_prefill else AWAITING_NEXT_TURN
            kept = (state.usage.blocks if state is not None else 0) or blocks
            self._leases.open(request_id, reason, at, kept)
            if state is not None:
                state.kept = kept
        if state is None:
            return
        if state.awaits_receive:
            self._leases.abort(request_id, at)
            state.kept = state.usage.blocks
            if status in FAILED:
                self._end_receive(state, at, failed=True)
            elif state.is_prefill:
                self._emit_endless_wait(state, at, "aborted")
        state.usage.stop(at)
        state.finish = (at, status, output_tokens)
        state.blocks = blocks or state.blocks
        # vLLM finishes a request inside the step that gave its last token; a first token of that step is still to come.
        awaits_step_end = not state.is_prefill and any(state in step for step in self._open_steps)
        if not awaits_step_end:
            self._finish(state)

    def _finish(self, state: RequestState) -> None:
        self._requests.pop(state.request_id, None)
        self._prompting.pop(state.request_id, None)
        assert state.finish is not None
        self._decisions.finished(state)
        at, status, output_tokens = state.finish
        common: dict[str, str | int | None] = {
            "prompt_tokens": state.prompt_tokens, "finish_reason": status, "block_ns": state.usage.block_ns,
            "blocks_peak": state.usage.peak, "blocks_kept": state.kept or None,
            "block_size": self._leases.terms.block_size,
        }  # fmt: skip
        if state.is_prefill:
            if state.scheduled is not None:
                self._emit(state, names.PREFILL_COMPUTE, state.scheduled, at, {"chunks": state.steps})
            self._emit_root(state, names.PREFILL, at, {
                **common, "cached_tokens": state.local_tokens, "computed_tokens": state.computed,
                "chunks": state.steps, "blocks": state.blocks, "peer_engine_id": state.peer_engine_id,
                "peer_request_id": state.peer_request_id,
            })  # fmt: skip
        else:
            end = max(at, state.first_token or at)
            self._emit_root(state, names.DECODE, end, {
                **common, "external_tokens": state.external_tokens, "local_tokens": state.local_tokens,
                "output_tokens": output_tokens, "peer_engine_id": state.peer_engine_id,
                "peer_request_id": state.peer_request_id,
            })  # fmt: skip
        if state.request_id not in self._leases:
            self._traces.forget(state.request_id)

    def close(self, at: int) -> None:
        """Emit the spans that are still open when the engine shuts down, with an unknown outcome."""
        for state in [one for one in self._requests.values() if one.is_prefill and one.awaits_receive]:
            self._emit_endless_wait(state, at, "unknown")
            state.finish = (at, "unknown", 0)
            self._finish(state)
        self._decisions.close(self._requests.values(), at)
        self._leases.close(at)

    def _emit(
        self, state: RequestState, name: str, start: int, end: int, attributes: Attributes, *, error: bool = False
    ) -> None:
        self._emitter.emit(state.request_id, name, start, end, attributes, error=error)

    def _emit_root(self, state: RequestState, name: str, end: int, attributes: dict[str, Any]) -> None:
        trace_id = self._traces.trace_id(state.request_id)
        links: tuple[tuple[int, int], ...] = ()
        if state.peer_engine_id and state.peer_request_id:
            # An earlier turn has a trace of its own; D's request of this turn has P's.
            peer_trace = derive_trace_id(request_key(state.peer_request_id)) if state.is_prefill else trace_id
            links = ((peer_trace, peer_root_id(state.peer_engine_id, state.peer_request_id)),)
        self._factory.emit(
            name, trace_id, state.arrived, end, with_request(state.request_id, attributes),
            span_id=self._factory.root_id(state.request_id), parent_id=self._traces.parent_id(state.request_id),
            kind=SpanKind.SERVER, links=links, error=attributes["finish_reason"] in FAILED,
        )  # fmt: skip

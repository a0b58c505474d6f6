"""Fetch or recompute: one `decision` span per request on P, and `validation` spans of what was wrong with an offer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from . import catalogue as names
from . import events, offers
from .decide import (
    ABORTED,
    BELOW_THRESHOLD,
    DISABLED,
    LOCAL_COVERS,
    NO_METADATA,
    NONE,
    NOTHING,
    Decision,
    Policy,
    decide,
    describe_estimates,
    name_failure,
    weigh,
)  # fmt: skip
from .estimates import CostModel, Estimate
from .events import Event
from .limited_log import LimitedWarning
from .metrics.facts import Fact, FactBook, receive_of
from .offers import Offer, Problem
from .prefix_digest import NO, PARAMETER, UNCOMPARED, PrefixMatch, compare_prefix
from .request_spans import RequestEmitter
from .request_state import RequestState

_FINISHED = ("finished_length_capped", "finished_stopped")
_MAX_PEERS = 1024
# P reads nothing, but tells D that it needs the blocks no longer.
_NOTIFIED = (BELOW_THRESHOLD, LOCAL_COVERS, NOTHING)


@dataclass(slots=True)
class Pending:
    """An offer whose decision has no span yet."""

    at: int
    offer: Offer
    is_invalid: bool = False
    decision: Decision | None = None
    fetch: Estimate | None = None
    recompute: Estimate | None = None
    awaits_fact: bool = False
    fact: Fact | None = None
    prefix: PrefixMatch = UNCOMPARED
    finished: RequestState | None = None
    trace_id: int = 0


class DecisionSpans:
    """Follow offers from arrival to the end of the prompt.

    Args:
        emitter: makes the spans.
        engine_id: this engine.
        mode: push, pull or bidirectional.
        limit: offers followed at most; the oldest are given up and counted in `evicted`.
        facts: what workers say of a receive; None when there are none.
        now: monotonic ns.
    """

    def __init__(
        self, emitter: RequestEmitter, engine_id: str, mode: str, limit: int, facts: FactBook | None = None, *,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:  # fmt: skip
        self._emitter = emitter
        self._engine_id = engine_id
        self._mode = mode
        self._limit = limit
        self._facts = facts
        self.policy = Policy(mode == "bidirectional", 0)
        self.prefix_key: bytes | None = None
        """Key of the digests of what D holds; None compares nothing."""
        self._now = now
        self._warn = LimitedWarning(now)
        self._pending: OrderedDict[str, Pending] = OrderedDict()
        # engine -> (its monotonic clock less this one's, ns; its KV-cache blocks), each None when unknown
        self._peers: OrderedDict[str, tuple[int | None, int | None]] = OrderedDict()
        # Offers that were taken up: D has freed their blocks.
        self._spent: OrderedDict[tuple[str | None, str | None], None] = OrderedDict()
        self._fetch_costs = CostModel(marginal=False)
        self._compute_costs = CostModel(marginal=True)
        self.evicted = 0
        self.handlers = {events.OFFER: self._on_offer, events.PEERS: self._on_peers}

    # -- what was offered ------------------------------------------------------------------------------------

    def _on_offer(self, event: Event) -> None:
        _, at, request_id, is_prefill, values, *prefix = event
        kind = offers.READBACK if is_prefill else (offers.PUSH if self._mode == "push" else offers.PULL)
        offer = Offer.of(values)
        problem = offers.find_problem(values, self._engine_id, kind)
        if problem is None and is_prefill and offer.has_blocks and (offer.engine_id, offer.request_id) in self._spent:
            problem = offers.STALE_OFFER, offers.REQUEST
        if problem is not None:
            self._emit_validation(request_id, at, problem)
        if not is_prefill:
            return
        if not self.policy.is_on and not offer.has_blocks:
            return
        pending = self._pending[request_id] = Pending(at, offer, is_invalid=problem is not None)
        if prefix:
            self._compare(request_id, pending, *prefix)
        self._check_late(request_id, pending, at)
        while len(self._pending) > self._limit:
            self._pending.popitem(last=False)
            self.evicted += 1

    def _compare(self, request_id: str, pending: Pending, prefix: Any, tokens: Any) -> None:
        """Compare the prompt with D's digest; nothing of the tokens is kept."""
        if self.prefix_key is None or not pending.offer.has_blocks:
            return
        found = compare_prefix(prefix, tokens, pending.offer.tokens, self.prefix_key)
        if found is None:
            if not pending.is_invalid:
                self._emit_validation(request_id, pending.at, (offers.WRONG_TYPE, PARAMETER))
            return
        pending.prefix = found
        if found.match == NO:
            # At its own time: whether it comes before the first token is what matters.
            self._emit_validation(request_id, self._now(), (offers.PREFIX_MISMATCH, PARAMETER))
            self._warn(
                "kvlens: the prompt of %s doesn't begin with what %s holds of %s (block %s differs): "
                "blocks fetched from there are those of other tokens",
                request_id, pending.offer.engine_id, pending.offer.request_id, found.mismatch,
            )  # fmt: skip

    def _on_peers(self, event: Event) -> None:
        _, at, learned = event
        for peers in learned:
            for engine_id, (offset, blocks) in peers.items():
                self._peers[engine_id] = (offset, blocks)
                while len(self._peers) > _MAX_PEERS:
                    self._peers.popitem(last=False)
        for request_id, pending in self._pending.items():
            self._check_late(request_id, pending, at)

    def _check_late(self, request_id: str, pending: Pending, at: int) -> None:
        """Check an offer against what the worker learned of its engine."""
        if pending.is_invalid:
            return
        blocks = self._peers.get(pending.offer.engine_id or "", (None, None))[1]
        problem = offers.find_late_problem(pending.offer, self._seconds_left(pending, pending.at), blocks)
        if problem is not None:
            pending.is_invalid = True
            self._emit_validation(request_id, at, problem)

    def _emit_validation(self, request_id: str, at: int, problem: Problem) -> None:
        reason, field = problem
        self._emitter.emit(request_id, names.VALIDATION, at, at, {"reason": reason, "field": field}, error=True)

    def _seconds_left(self, pending: Pending, at: int) -> float | None:
        """Return the seconds at `at` (monotonic ns) until the offered blocks expire; None when unknown."""
        offset = self._peers.get(pending.offer.engine_id or "", (None, None))[0]
        if offset is None or pending.offer.expiry_s is None:
            return None
        return pending.offer.expiry_s - (offset + at) / 1e9

    # -- what became of it: called by the scheduler's span builder -------------------------------------------

    def allocated(self, state: RequestState) -> None:
        """Note that the scheduler has decided."""
        pending = self._pending.get(state.request_id)
        if pending is None:
            return
        pending.decision = decide(pending.offer, state, self.policy)
        saved = pending.decision.fetch_tokens or 0
        pending.fetch, pending.recompute = self._fetch_costs.estimate(saved), self._compute_costs.estimate(saved)
        if pending.decision.reason in _NOTIFIED:
            self._spend(pending.offer)
        if pending.decision.reason == DISABLED:
            # vLLM parks such a request for blocks that nobody reads: nothing more will become of it.
            self._emit(state.request_id, self._pending.pop(state.request_id), state)

    def told(self, state: RequestState, at: int) -> None:
        """Note that a fetch has ended; ask for what the worker knows where the scheduler's view leaves it open."""
        pending = self._pending.get(state.request_id)
        if pending is not None and not state.failed:
            self._spend(pending.offer)
        if pending is None or self._facts is None:
            return
        pending.awaits_fact = state.failed or (
            pending.offer.expiry_s is not None and pending.offer.engine_id not in self._peers
        )
        if pending.awaits_fact:
            request_id = state.request_id
            self._facts.wait(receive_of(request_id), at, lambda fact: self._learn(request_id, fact))

    def _spend(self, offer: Offer) -> None:
        self._spent[offer.engine_id, offer.request_id] = None
        while len(self._spent) > self._limit:
            self._spent.popitem(last=False)

    def _learn(self, request_id: str, fact: Fact | None) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            return
        pending.awaits_fact, pending.fact = False, fact
        if fact is not None and fact.reason == offers.FOREIGN_ENGINE and not pending.is_invalid:
            self._emit_validation(request_id, pending.at, (offers.FOREIGN_ENGINE, offers.ENGINE))
        if pending.finished is not None:
            self._emit(request_id, self._pending.pop(request_id), pending.finished)

    def finished(self, state: RequestState) -> None:
        """Note that a prompt is done (or its request has ended): measure it, and say what was decided."""
        if not state.is_prefill:
            return
        self._measure(state)
        pending = self._pending.get(state.request_id)
        if pending is None:
            return
        pending.trace_id = self._emitter.trace_id(state.request_id)
        pending.finished = state
        if not pending.awaits_fact:
            self._emit(state.request_id, self._pending.pop(state.request_id), state)

    def _measure(self, state: RequestState) -> None:
        if state.told is not None and state.allocated is not None and state.external_tokens and not state.failed:
            self._fetch_costs.add(state.external_tokens, state.told - state.allocated)
        if state.scheduled is not None and state.finish is not None and state.finish[1] in _FINISHED:
            self._compute_costs.add(state.computed, state.finish[0] - state.scheduled)

    def close(self, states: Iterable[RequestState], at: int) -> None:
        """Emit what is still open, with what is known."""
        for state in states:
            pending = self._pending.get(state.request_id)
            if pending is not None and pending.finished is None:
                pending.finished = state
        for request_id, pending in self._pending.items():
            if pending.finished is not None:
                self._emit(request_id, pending, pending.finished, at)
        self._pending.clear()

    # -- the span --------------------------------------------------------------------------------------------

    def _emit(self, request_id: str, pending: Pending, state: RequestState, at: int = 0) -> None:
        end = state.allocated or (state.finish[0] if state.finish else max(at, state.arrived))
        left = self._seconds_left(pending, end)
        decision = self._conclude(pending, state, left)
        attributes: dict[str, Any] = {
            "decision": decision.decision, "reason": decision.reason, "prompt_tokens": state.prompt_tokens,
            "remote_tokens": pending.offer.tokens, "local_tokens": state.local_tokens,
            "fetch_tokens": decision.fetch_tokens, "threshold": self.policy.threshold, "seconds_to_expiry": left,
            "peer_engine_id": pending.offer.engine_id, "peer_request_id": pending.offer.request_id,
            "prefix_match": pending.prefix.match, "prefix_mismatch_block": pending.prefix.mismatch,
            "prefix_blocks": pending.prefix.blocks, **describe_estimates(pending.fetch, pending.recompute),
            **weigh(decision, state, pending.fetch, pending.recompute),
        }  # fmt: skip
        self._emitter.emit(request_id, names.DECISION, state.arrived, end, attributes, trace_id=pending.trace_id)

    def _conclude(self, pending: Pending, state: RequestState, left: float | None) -> Decision:
        """Return the decision with the reason that its outcome gives it."""
        made = pending.decision
        if made is None:
            # Never allocated: nothing was decided, unless there was nothing to decide.
            return Decision(NONE, ABORTED if pending.offer.has_blocks else NO_METADATA, None)
        if made.reason != DISABLED and state.awaits_receive:
            return made._replace(reason=ABORTED)
        if state.failed:
            return made._replace(reason=name_failure(state, pending.fact.reason if pending.fact else "", left))
        return made

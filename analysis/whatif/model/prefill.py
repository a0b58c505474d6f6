"""The prefill engine: a first-come queue, prompts in chunks of a token budget, finished blocks kept until gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import simpy

from ..parameters import PULL, EngineModel
from .engine import Engine
from .machine import Events, Machine
from .request import Request

Chunk = tuple[Request, int]


class PrefillEngine(Engine):
    """P.

    mode: pull answers the router when a prompt is done; push besides hands the blocks to its writer with the next step.
    on_done: called with each request whose prompt is done.
    hand_over: called with each request whose blocks the writer gets (push).
    at_once: the writer gets the blocks without waiting for the next step (no coordination).
    fetches: whether a request's earlier turns are read back from D. read: process of that read (bidirectional).
    """

    def __init__(
        self, env: simpy.Environment, name: str, model: EngineModel, *, machine: Machine, seed: int, mode: str,
        on_done: Callable[[Request], None], hand_over: Callable[[Request], None],
        fetches: Callable[[Request], bool], read: Callable[[Request], Events], at_once: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(env, name, model, machine=machine, seed=seed)
        self._mode, self._on_done, self._hand_over, self._at_once = mode, on_done, hand_over, at_once
        self._fetches, self._read = fetches, read
        self._waiting: deque[Request] = deque()
        self._remote: list[Request] = []
        self._staged: list[Request] = []
        self._ready: deque[Request] = deque()
        self._running: list[Request] = []
        self._finished: list[Request] = []
        self.held: set[int] = set()
        self._gone: list[Request] = []
        self._unpolled: list[simpy.Event] = []

    def take(self, request: Request) -> None:
        """Take a request: prefill_ingress ends, prefill_queue begins."""
        request.mark("p_start", self.env.now)
        request.remaining = max(request.job.tokens - request.job.cached, 1)
        self._waiting.append(request)

    def has_work(self) -> bool:
        """Prompts, or blocks that wait to be written or read."""
        queued = self._waiting or self._remote or self._ready or self._running
        return bool(queued or self._finished or self.held or self._gone)

    def release(self, request: Request) -> None:
        """Note that the blocks have left; they are free when the next step polls."""
        self._gone.append(request)

    def await_poll(self) -> simpy.Event:
        """Return an event that comes with the end of the step that runs now, or the next one."""
        event = self.env.event()
        self._unpolled.append(event)
        return event

    def step(self) -> Events:
        """Compute chunks of prompts; reads are posted, push gives away what the step before finished."""
        chunks = self._schedule()
        seconds = self.begin_step(self._cost(chunks) if chunks else None)
        yield from self.machine.run(self.name, seconds * self.model.submit_at)
        handed, self._finished = self._finished, []
        for request in handed:
            self._hand_over(request)
        staged, self._staged = self._staged, []
        for request in staged:
            yield from self._read(request)
        yield from self.machine.run(self.name, seconds * (1 - self.model.submit_at))
        self._poll()
        for request, tokens in chunks:
            request.remaining -= tokens
            if not request.remaining:
                self._finish(request)

    def _schedule(self) -> list[Chunk]:
        """Running prompts first, then waiting ones in their order, until the budget or the cache is full."""
        chunks: list[Chunk] = []
        budget = self.model.token_budget
        for request in self._running:
            chunks.append((request, min(request.remaining, budget)))
            budget -= chunks[-1][1]
        while budget > 0 and len(self._running) < self.model.sequences and (admitted := self._admit()):
            self.queue.add(-1)
            admitted.mark("p_sched", self.env.now)
            self._running.append(admitted)
            chunks.append((admitted, min(admitted.remaining, budget)))
            budget -= chunks[-1][1]
        return [chunk for chunk in chunks if chunk[1] > 0]

    def _admit(self) -> Request | None:
        """Return the next request that can compute; what is read back first gets its blocks and waits beside."""
        if self._ready:
            return self._ready.popleft()
        while self._waiting:
            blocks = self.model.count_blocks(self._waiting[0].job.tokens)
            if not self.fits(blocks):
                return None
            request = self._waiting.popleft()
            self.blocks.add(blocks)
            if not self._fetches(request):
                return request
            request.mark("p_alloc", self.env.now)
            self._remote.append(request)
            self._staged.append(request)
        return None

    def _cost(self, chunks: list[Chunk]) -> float:
        total = sum(tokens for _, tokens in chunks)
        pairs = sum(tokens * (request.job.tokens - request.remaining + tokens / 2) for request, tokens in chunks)
        work = sum(request.job.work * tokens for request, tokens in chunks) / total
        return self.model.cost.prefill(total, pairs) * work * self.draw_noise()

    def _finish(self, request: Request) -> None:
        """End prefill_compute: keep the blocks, answer, and in push stage the hand-over."""
        request.mark("p_end", self.env.now)
        self._running.remove(request)
        self.held.add(request.job.index)
        self._on_done(request)
        if self._mode == PULL:
            return
        if self._at_once:
            self._hand_over(request)
        else:
            self._finished.append(request)

    def _poll(self) -> None:
        """See at the end of a step which transfers are over: blocks are free or filled, notifications go out."""
        for request in [one for one in self._remote if one.at.get("p_landed", self.env.now + 1) <= self.env.now]:
            request.mark("p_told", self.env.now)
            request.remaining = max(request.remaining - request.job.offered, 1)
            self._remote.remove(request)
            self._ready.append(request)
        for request in self._gone:
            self.held.discard(request.job.index)
            self.blocks.add(-self.model.count_blocks(request.job.tokens))
        self._gone = []
        events, self._unpolled = self._unpolled, []
        for event in events:
            event.succeed()

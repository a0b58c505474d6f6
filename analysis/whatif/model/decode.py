"""The decode engine: admits by free blocks, hands transfers over, polls once per step, decodes what has its KV."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import simpy

from ..parameters import PULL, EngineModel
from .engine import Engine
from .machine import Events, Machine
from .request import Request


class DecodeEngine(Engine):
    """D.

    mode: pull posts reads of its own; push registers its blocks and waits for the notification.
    post: called with a request; returns the process of its submission (pull).
    register: called with each request whose blocks P is told of (push).
    on_first: called with each request that got its first token.
    keeps: blocks of finished requests stay until release is called (bidirectional).
    reader_thread: submissions run beside the step. at_once: requests are admitted, posted and told without a step.
    """

    def __init__(
        self, env: simpy.Environment, name: str, model: EngineModel, *, machine: Machine, seed: int, mode: str,
        post: Callable[[Request], Events], register: Callable[[Request], None], on_first: Callable[[Request], None],
        on_end: Callable[[Request], None], keeps: bool = False, reader_thread: bool = False, at_once: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(env, name, model, machine=machine, seed=seed)
        self._mode, self._post, self._register = mode, post, register
        self._on_first, self._on_end = on_first, on_end
        self._reader_thread, self._at_once, self._keeps = reader_thread, at_once, keeps
        self._waiting: deque[Request] = deque()
        self._remote: list[Request] = []
        self._staged: list[Request] = []
        self._told: deque[Request] = deque()
        self._running: list[Request] = []
        self._noticed: list[Request] = []

    def put(self, request: Request) -> None:
        """Hand a request to the input queue; without coordination it needs no step to be admitted."""
        super().put(request)
        if self._at_once:
            self._take_in()
            self._admit()
            self._submit_at_once()

    def take(self, request: Request) -> None:
        """Take a request: decode_admission begins."""
        request.mark("d_start", self.env.now)
        self._waiting.append(request)

    def has_work(self) -> bool:
        """Anything between arrival and last token."""
        return bool(self._waiting or self._remote or self._told or self._running or self._staged)

    def step(self) -> Events:
        """Admit, decode one token each, hand new transfers over, poll."""
        self._start()
        self._admit()
        running = list(self._running)
        seconds = self.begin_step(self._cost(running) if running else None)
        yield from self.machine.run(self.name, seconds * self.model.submit_at)
        yield from self._submit()
        yield from self.machine.run(self.name, seconds * (1 - self.model.submit_at))
        self._poll()
        for request in running:
            self._generate(request)

    def tell(self, request: Request) -> None:
        """Tell the scheduler that a request's KV is here: completion_lag ends, decode_queue begins."""
        request.mark("d_told", self.env.now)
        self._remote.remove(request)
        self._told.append(request)

    def release(self, request: Request) -> None:
        """Free a request's blocks."""
        self.blocks.add(-self._need(request))

    def _start(self) -> None:
        while self._told and len(self._running) < self.model.sequences:
            request = self._told.popleft()
            request.mark("d_sched", self.env.now)
            self.queue.add(-1)
            self._running.append(request)

    def _admit(self) -> None:
        """Allocate blocks in order of arrival: early commitment in push holds them while P still computes."""
        while self._waiting and self.fits(self._need(self._waiting[0])):
            request = self._waiting.popleft()
            self.blocks.add(self._need(request))
            request.mark("d_alloc", self.env.now)
            self._remote.append(request)
            self._staged.append(request)

    def _submit(self) -> Events:
        """Hand over what was admitted: reads are posted one after the other, registrations are sent."""
        staged, self._staged = self._staged, []
        for request in staged:
            if self._mode != PULL:
                self._register(request)
            elif self._reader_thread:
                self.env.process(self._post(request))
            else:
                yield from self._post(request)

    def _submit_at_once(self) -> None:
        staged, self._staged = self._staged, []
        for request in staged:
            if self._mode != PULL:
                self._register(request)
            else:
                self.env.process(self._post(request))

    def _poll(self) -> None:
        """Poll at the step's end: a read is asked for, a write's notification is collected one step after it was seen.

        The push writer looks for notifications when a step ends and wakes it; get_transfer_results of the next step
        takes them from its queue.
        """
        now = self.env.now
        if self._mode == PULL:
            seen = [one for one in self._remote if one.at.get("landed", now + 1) <= now]
        else:
            seen = [one for one in self._noticed if one in self._remote]
            arrived = [one for one in self._remote if one.notified is not None and one.notified <= now]
            self._noticed = [one for one in arrived if one not in seen]
        for request in seen:
            self.tell(request)

    def _cost(self, running: list[Request]) -> float:
        context = sum(one.job.tokens + one.generated for one in running)
        return self.model.cost.decode(len(running), context) * self.draw_noise()

    def _generate(self, request: Request) -> None:
        request.generated += 1
        if request.generated == 1:
            request.mark("d_first", self.env.now)
            self._on_first(request)
        if request.generated >= request.job.output:
            request.mark("d_end", self.env.now)
            self._running.remove(request)
            if not self._keeps:
                self.release(request)
            self._on_end(request)

    def _need(self, request: Request) -> int:
        return self.model.count_blocks(request.job.tokens + request.job.output)

"""The loop of an engine core: take what came in, schedule, step, and poll at the step's end, as vLLM's does.

Requests are taken in between steps only (EngineCore.run_busy_loop), a step runs to its end once begun, and an engine
goes on stepping idly as long as it waits for a transfer; it sleeps when it has nothing to wait for.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import simpy

from ..parameters import EngineModel
from .level import Level
from .machine import Events, Machine
from .request import Request


class Engine(ABC):
    """One engine.

    Levels: queue (requests at the engine that wait for their first step), blocks (held KV blocks).
    """

    def __init__(self, env: simpy.Environment, name: str, model: EngineModel, *, machine: Machine, seed: int) -> None:
        self.env, self.name, self.model, self.machine = env, name, model, machine
        self.queue, self.blocks = Level(env), Level(env)
        self._noise = random.Random(f"{seed}/{name}/step")
        self._inbox: list[Request] = []
        self._alarm = env.event()
        self.is_stepping = False
        env.process(self._run())

    def put(self, request: Request) -> None:
        """Hand a request to the engine's input queue."""
        self._inbox.append(request)
        self.queue.add(1)
        self.alarm()

    def alarm(self) -> None:
        """Wake the engine if it sleeps."""
        if not self._alarm.triggered:
            self._alarm.succeed()

    def fits(self, blocks: int) -> bool:
        """Whether so many more blocks can be allocated."""
        return self.model.blocks is None or self.blocks.value + blocks <= self.model.blocks

    def draw_noise(self) -> float:
        """Draw how much longer a step takes than its fitted cost."""
        return self._noise.choice(self.model.cost.noise)

    def begin_step(self, cost: float | None) -> float:
        """Begin a step that costs so much, or an idle one (None): seconds of it."""
        if cost is None:
            self.machine.poll(self.name)
            return self.model.idle_step
        self.machine.compute(self.name)
        return cost

    def _run(self) -> Events:
        while True:
            self._take_in()
            if not self.has_work():
                self.is_stepping = False
                self.machine.rest(self.name)
                if not self._inbox:
                    self._alarm = self.env.event()
                    yield self._alarm
                self.is_stepping = True
                continue
            yield from self.step()

    def _take_in(self) -> None:
        arrived, self._inbox = self._inbox, []
        for request in arrived:
            self.take(request)

    @abstractmethod
    def take(self, request: Request) -> None:
        """Take a request out of the input queue, between two steps."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is something to step for."""

    @abstractmethod
    def step(self) -> Events:
        """Schedule, run and end one step."""

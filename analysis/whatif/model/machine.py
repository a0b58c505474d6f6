"""The processor under the engines: whole and alone on a fleet, shared on a lab's machine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

Events = Generator[simpy.Event, Any, Any]


class Machine:
    """Run work of engines that slow each other down.

    slowdown: engine -> how much longer its work takes while another one computes (1.0: twice the time); beside one that
    only polls it is `idle_intensity` of that.
    """

    def __init__(self, env: simpy.Environment, slowdown: dict[str, float], idle_intensity: float = 1.0) -> None:
        self._env = env
        self._slowdown = slowdown
        self._idle_intensity = idle_intensity
        self._intensity: dict[str, float] = {}
        self._changed = env.event()
        self._is_shared = any(value > 0 for value in slowdown.values())

    def compute(self, engine: str) -> None:
        """Note that an engine computes from now on."""
        self._change(engine, 1.0)

    def poll(self, engine: str) -> None:
        """Note that an engine only polls from now on."""
        self._change(engine, self._idle_intensity)

    def rest(self, engine: str) -> None:
        """Note that an engine sleeps from now on."""
        self._change(engine, 0.0)

    def run(self, engine: str, seconds: float) -> Events:
        """Take the time of some work, given as seconds of an engine that is alone."""
        if not self._is_shared or self._slowdown.get(engine, 0.0) == 0:
            yield self._env.timeout(seconds)
            return
        left = seconds
        while left > 1e-12:
            other = max((value for name, value in self._intensity.items() if name != engine), default=0.0)
            rate = 1.0 / (1.0 + self._slowdown[engine] * other)
            begun = self._env.now
            yield self._env.timeout(left / rate) | self._changed
            left -= (self._env.now - begun) * rate

    def _change(self, engine: str, intensity: float) -> None:
        if self._intensity.get(engine, 0.0) == intensity:
            return
        self._intensity[engine] = intensity
        if self._is_shared:
            changed, self._changed = self._changed, self._env.event()
            changed.succeed()

"""A level that changes over time (a queue, held blocks): its maximum, and its mean over the time it was watched."""

from __future__ import annotations

import simpy


class Level:
    """One level of one engine."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.value = 0
        self.maximum = 0
        self._area = 0.0
        self._since = env.now

    def add(self, amount: int) -> None:
        """Change the level by `amount` from now on."""
        now = self._env.now
        self._area += self.value * (now - self._since)
        self._since = now
        self.value += amount
        self.maximum = max(self.maximum, self.value)

    def mean(self, until: float) -> float:
        """Mean of the level from the start until then."""
        area = self._area + self.value * max(until - self._since, 0.0)
        return area / until if until > 0 else 0.0

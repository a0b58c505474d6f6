"""A request on its way through the model, and the moments that it passed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ..parameters import Job


@dataclass
class Request:
    """One request.

    job: what it is. at: milestone -> second. luck: its draws, the same in every arrangement of one seed.
    prefill, decode: engines that serve it. remaining: prompt tokens to compute. generated: output tokens so far.
    notified: when D's agent has the completion notification (push). is_kept: D still has its blocks for the next turn.
    """

    job: Job
    luck: Luck
    at: dict[str, float] = field(default_factory=dict)
    prefill: int = 0
    decode: int = 0
    remaining: int = 0
    generated: int = 0
    notified: float | None = None
    is_kept: bool = False

    def mark(self, name: str, now: float) -> None:
        """Note a milestone, once."""
        self.at.setdefault(name, now)


class Luck:
    """A request's own random draws: they depend on seed and request alone, so arrangements differ by nothing else."""

    def __init__(self, seed: int, index: int) -> None:
        self._seed = f"{seed}/{index}"

    def source(self, purpose: str) -> random.Random:
        """A source for one purpose."""
        return random.Random(f"{self._seed}/{purpose}")

"""Clocks with known offset, drift and jumps, and messages between them with random delays."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import polars as pl

EPOCH = 1_790_000_000 * 10**9
MS = 10**6
S = 10**9


@dataclass
class FakeClock:
    """A clock: offset (ns) and drift (ns per ns) against true time, and jumps (true ns -> ns added from there on)."""

    name: str
    offset: int = 0
    drift: float = 0.0
    jumps: dict[int, int] = field(default_factory=dict)

    def stamp(self, true: float) -> int:
        jumped = sum(size for at, size in self.jumps.items() if true >= at)
        return EPOCH + round(true) + self.offset + round(self.drift * true) + jumped


def draw_clock(draw: random.Random, name: str) -> FakeClock:
    return FakeClock(name, round(draw.uniform(-500, 500) * MS), draw.uniform(-50e-6, 50e-6))


@dataclass
class Mail:
    """Collects messages."""

    draw: random.Random
    rows: list[tuple[str, str, str, int, int]] = field(default_factory=list)

    def send(self, a: FakeClock, b: FakeClock, true: float, delay: float) -> None:
        self.rows.append(("test", a.name, b.name, a.stamp(true), b.stamp(true + delay)))

    def exchange(  # noqa: PLR0917
        self, a: FakeClock, b: FakeClock, count: int, seconds: float, least_ms: tuple[float, float] = (0.3, 0.5),
        mean_ms: float = 5.0,
    ) -> None:  # fmt: skip
        """Send count messages each way at random moments, delayed by a least time and an exponential rest."""
        for _ in range(count):
            for sender, receiver, least in ((a, b, least_ms[0]), (b, a, least_ms[1])):
                delay = (least + self.draw.expovariate(1 / mean_ms)) * MS
                self.send(sender, receiver, self.draw.uniform(0, seconds) * S, delay)

    @property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(
            self.rows, schema=["kind", "sender", "receiver", "sent", "received"], orient="row"
        ).with_columns(pl.col("sent", "received").cast(pl.Int64))

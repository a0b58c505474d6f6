"""Which steps are slow, and what made them so: a rolling bound over the steps in which every request decodes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

WINDOW = 128
LEAST = 32
"""Steps seen before anything is called slow."""
FACTOR = 2.0
MARGIN_NS = 5_000_000
"""A step is slow above FACTOR times the median and MARGIN_NS above it: a fast engine's jitter isn't worth a span."""
REFRESH = 32
MAX_PER_WINDOW = 10
"""Slow spans per WINDOW steps at most; the others are counted."""

PARTS = ("post", "poll", "save", "execution", "gap")


@dataclass(frozen=True)
class StepTimes:
    """One step of a worker (ns). The gap is the time since the step before: scheduler, transport, sampling."""

    post: int
    poll: int
    save: int
    execution: int
    gap: int

    @property
    def period(self) -> int:
        """Time from the end of the step before to the end of this one."""
        return self.post + self.poll + self.save + self.execution + self.gap

    def values(self) -> tuple[int, ...]:
        """Return the parts in the order of PARTS."""
        return (self.post, self.poll, self.save, self.execution, self.gap)


class SlowSteps:
    """Find slow steps.

    `judge` is called once per step with work, in order; medians are refreshed every REFRESH steps, so a step costs an
    append and a comparison.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, ...]] = deque(maxlen=WINDOW)
        self._medians: tuple[int, ...] = ()
        self._seen = self._spans = 0
        self.suppressed = 0
        self.bound_ns = 0

    def judge(self, times: StepTimes, *, pure: bool, preempted: int) -> str:
        """Return why a step was slow, "" when it wasn't or when there were too many lately.

        Args:
            times: the step.
            pure: every scheduled request decoded one token: such steps make the bound.
            preempted: requests that lost their blocks in this step's scheduling.
        """
        cause = self._cause(times, preempted)
        if pure:
            self._recent.append((*times.values(), times.period))
            if len(self._recent) >= LEAST and (not self._medians or self._seen % REFRESH == 0):
                self._refresh()
        self._seen += 1
        if self._seen % WINDOW == 0:
            self._spans = 0
        if cause:
            if self._spans >= MAX_PER_WINDOW:
                self.suppressed += 1
                return ""
            self._spans += 1
        return cause

    def _cause(self, times: StepTimes, preempted: int) -> str:
        if not self._medians or times.period <= self.bound_ns:
            return ""
        excess = {name: value - usual for name, value, usual in zip(PARTS, times.values(), self._medians, strict=False)}
        cause = max(excess, key=lambda name: excess[name])
        # The preempted request's blocks are computed again: its cost shows as execution or scheduling.
        return "preemption" if preempted and cause in ("execution", "gap") else cause

    def _refresh(self) -> None:
        self._medians = tuple(int(median(column)) for column in zip(*self._recent, strict=True))
        usual = self._medians[-1]
        self.bound_ns = int(max(FACTOR * usual, usual + MARGIN_NS))

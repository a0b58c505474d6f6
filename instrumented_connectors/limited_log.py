"""Warnings that can come with every request: one in ten seconds at most, with how many were left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("kvlens")

INTERVAL_NS = 10_000_000_000


class LimitedWarning:
    """Log a warning unless another one of the same kind came just before.

    Args:
        now: monotonic ns.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._last: int | None = None
        self._left_out = 0

    def __call__(self, message: str, *values: object) -> None:
        now = self._now()
        if self._last is not None and now - self._last < INTERVAL_NS:
            self._left_out += 1
            return
        self._last = now
        more = f" ({self._left_out} more like this were not logged)" if self._left_out else ""
        self._left_out = 0
        logger.warning(f"{message}{more}", *values)

"""What waits at a push writer: finished blocks without a post, and registrations without finished blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..identity import base_id
from . import catalogue as table
from .catalogue import Metric


class PushWaiting:
    """Follow one rank's push writer.

    Args:
        limit: requests followed at most on either side; the oldest are given up.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Keyed as vLLM pairs them: by the request id without its random suffix.
        self._blocks: OrderedDict[str, int] = OrderedDict()
        self._registrations: OrderedDict[str, int] = OrderedDict()
        self.seen = False

    def finish(self, request_id: str, at: int) -> None:
        """Note that a finished request's blocks were handed to the writer."""
        self._put(self._blocks, request_id, at)

    def register(self, request_id: str, at: int) -> None:
        """Note that a registration of D's request was seen."""
        self._put(self._registrations, request_id, at)

    def post(self, request_id: str | None, peer_request_id: str | None) -> None:
        """Note that a write was prepared: both sides have met."""
        for name in (request_id, peer_request_id):
            if name is not None:
                self._blocks.pop(base_id(name), None)
                self._registrations.pop(base_id(name), None)

    def drop(self, request_id: str) -> None:
        """Note that a request was given back without a post."""
        self._blocks.pop(base_id(request_id), None)

    def _put(self, side: OrderedDict[str, int], request_id: str, at: int) -> None:
        self.seen = True
        side[base_id(request_id)] = at
        while len(side) > self._limit:
            side.popitem(last=False)

    def measure(self, now: int, rank: str) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
        """Yield the gauges as of `now` (monotonic ns); nothing on an engine that never had either."""
        if not self.seen:
            return
        for name, side in (("blocks", self._blocks), ("registrations", self._registrations)):
            oldest = now - next(iter(side.values())) if side else 0
            yield table.PUSH_WAITING, (name, rank), len(side)
            yield table.PUSH_OLDEST, (name, rank), max(0, oldest) / 1e9

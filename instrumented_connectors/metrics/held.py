"""Which requests hold blocks for a transfer right now, and why. Follows scheduler events; bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from . import catalogue as table
from .catalogue import Metric


class HeldBlocks:
    """Ledger of blocks held now.

    Args:
        limit: requests followed at most; the oldest are given up.
        consumes: the engine decodes: blocks that it keeps after a request wait for the next turn.
    """

    def __init__(self, limit: int, *, consumes: bool) -> None:
        self._limit = limit
        self._kept_for = table.AWAITING_NEXT_TURN if consumes else table.AWAITING_TRANSFER
        self._held: OrderedDict[str, tuple[str, int, int]] = OrderedDict()  # reason, since ns, blocks

    def reserve(self, request_id: str, at: int, blocks: int) -> None:
        """Note that blocks were reserved for KV that is to arrive."""
        self._put(request_id, table.AWAITING_ARRIVAL, at, blocks)

    def arrive(self, request_id: str) -> int | None:
        """Note that the KV has arrived (or failed to); return since when it was awaited (ns), None when it wasn't."""
        reason, since, _ = self._held.get(request_id, ("", 0, 0))
        if reason not in {table.AWAITING_ARRIVAL, table.ABORTED_RECEIVE}:
            return None
        del self._held[request_id]
        return since if reason == table.AWAITING_ARRIVAL else None

    def finish(self, request_id: str, at: int, blocks: int, *, kept: bool) -> bool:
        """Note that a request ended, and whether its blocks stay for the other side.

        Returns:
            Whether its KV was still to come.
        """
        reason, since, reserved = self._held.get(request_id, ("", 0, 0))
        if reason == table.AWAITING_ARRIVAL:
            self._put(request_id, table.ABORTED_RECEIVE, since, reserved)
            return True
        if kept:
            self._put(request_id, self._kept_for, at, blocks)
        return False

    def release(self, request_id: str) -> None:
        """Note that a request's blocks were given back."""
        self._held.pop(request_id, None)

    def _put(self, request_id: str, reason: str, at: int, blocks: int) -> None:
        self._held[request_id] = (reason, at, blocks)
        while len(self._held) > self._limit:
            self._held.popitem(last=False)

    def measure(self, now: int) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
        """Yield the gauges as of `now` (monotonic ns)."""
        blocks, requests, oldest = (dict.fromkeys(table.HELD_REASONS, 0) for _ in range(3))
        for reason, since, count in self._held.values():
            blocks[reason] += count
            requests[reason] += 1
            oldest[reason] = max(oldest[reason], now - since)
        for reason in table.HELD_REASONS:
            yield table.HELD_BLOCKS, (reason,), blocks[reason]
            yield table.HELD_REQUESTS, (reason,), requests[reason]
            yield table.OLDEST_HELD, (reason,), oldest[reason] / 1e9

"""What a worker alone knows of a request, on its way to the scheduler: why a lease ended, the slowest rank's times.

A worker may live in another process even with one rank. Facts travel inside the connector's stats, are taken out again
in the scheduler process and never reach the front end: they name requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

V = TypeVar("V")

WAIT_NS = 4_000_000_000
"""How long the scheduler side waits for a worker's facts; they travel about once a second, with a step's results."""
TRAVEL_NS = 2_000_000_000
"""By then the worker has its facts ready: the next step that ends brings them."""
WAIT_STEPS = 3
"""Steps that must have ended after that: during a step of many seconds (the first one of a shape) nothing travels."""
LONGEST_WAIT_NS = 60_000_000_000
"""How long it waits when no steps end."""


def receive_of(request_id: str) -> str:
    """Return the name of a request's facts as a receiver: on P it may read blocks back and lend its own afterwards."""
    return f"receive {request_id}"


# With ranks that disagree, the one that lost the blocks decides.
_WORST = {"expired": 3, "sent": 2, "read": 2, "released": 1, "": 0}


class Cause(NamedTuple):
    """Why a lease ended: outcome (read, sent, expired...), lease extensions, when the last one came (Unix ns or 0)."""

    outcome: str
    heartbeats: int = 0
    last_heartbeat_ns: int = 0


@dataclass(slots=True)
class Fact:
    """What one rank, or the slowest of all, says of a request.

    Attributes:
        outcome: how the lease ended (read, sent, expired), "" for a request that was received.
        heartbeats: lease extensions received.
        coordination_ns: waits and calls of this side's worker on the request's path.
        transfer_ns: first post returned until the last transfer was seen done.
        reason: why a receive failed (expired, remote_unknown, foreign_engine, failed), "" for one that didn't.
        last_heartbeat_ns: when the last lease extension came (Unix ns), 0 for none.
        ranks: how many ranks have reported.
    """

    outcome: str = ""
    heartbeats: int = 0
    coordination_ns: int = 0
    transfer_ns: int = 0
    reason: str = ""
    last_heartbeat_ns: int = 0
    ranks: int = 1

    def encode(self) -> list[Any]:
        """Return plain values for the stats."""
        return [
            self.outcome, self.heartbeats, self.coordination_ns, self.transfer_ns, self.reason, self.last_heartbeat_ns,
        ]  # fmt: skip

    def merge(self, other: Fact) -> None:
        """Take in another rank's report: the worst outcome, the slowest rank's times."""
        if _WORST.get(other.outcome, 0) > _WORST.get(self.outcome, 0):
            self.outcome = other.outcome
        self.heartbeats = max(self.heartbeats, other.heartbeats)
        self.reason = self.reason or other.reason
        self.last_heartbeat_ns = max(self.last_heartbeat_ns, other.last_heartbeat_ns)
        if other.coordination_ns + other.transfer_ns > self.coordination_ns + self.transfer_ns:
            self.coordination_ns, self.transfer_ns = other.coordination_ns, other.transfer_ns
        self.ranks += other.ranks


Settle = Callable[["Fact | None"], None]


@dataclass(slots=True)
class _Waiting:
    since: int
    step: int | None  # steps that had ended when the facts were ready to travel, None before
    settle: list[Settle]


class FactBook:
    """Scheduler side: join the ranks' facts with those who wait for them.

    Args:
        limit: requests kept at most; the oldest are settled with what is known.
        ranks: workers that report each request.
    """

    def __init__(self, limit: int, ranks: int = 1) -> None:
        self._limit = limit
        self.ranks = ranks
        self.steps = 0
        self._facts: OrderedDict[str, Fact] = OrderedDict()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def add(self, encoded: dict[str, list[Any]]) -> None:
        """Take in one worker's facts."""
        for request_id, values in encoded.items():
            fact = Fact(*values)
            known = self._facts.get(request_id)
            if known is None:
                known = self._facts[request_id] = fact
            else:
                known.merge(fact)
            if known.ranks >= self.ranks and request_id in self._waiting:
                self._settle(request_id)
        while len(self._facts) > self._limit:
            self._facts.popitem(last=False)

    def wait(self, request_id: str, now: int, settle: Settle) -> None:
        """Call `settle` with the request's fact: when all ranks have reported, or after a bounded wait."""
        waiting = self._waiting.setdefault(request_id, _Waiting(now, None, []))
        waiting.settle.append(settle)
        while len(self._waiting) > self._limit:
            self._settle(next(iter(self._waiting)))

    def tick(self, now: int) -> None:
        """Settle those who are complete, or have waited long enough (called after each drain)."""
        due = [name for name, waiting in self._waiting.items() if self._is_due(name, waiting, now)]
        self._settle_all(due)

    def _is_due(self, request_id: str, waiting: _Waiting, now: int) -> bool:
        fact = self._facts.get(request_id)
        if fact is not None and fact.ranks >= self.ranks:
            return True
        waited = now - waiting.since
        if waiting.step is None:
            if waited <= TRAVEL_NS:
                return False
            waiting.step = self.steps
        steps = self.steps - waiting.step
        return waited > LONGEST_WAIT_NS or (waited > WAIT_NS and steps >= WAIT_STEPS)

    def close(self) -> None:
        """Settle everything with what is known."""
        self._settle_all(list(self._waiting))

    def _settle_all(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._settle(request_id)

    def _settle(self, request_id: str) -> None:
        waiting, fact = self._waiting.pop(request_id), self._facts.pop(request_id, None)
        for settle in waiting.settle:
            settle(fact)


class FactGatherer:
    """Worker side: gather one rank's times of each request until it is reported.

    Args:
        limit: requests followed and facts kept for delivery at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[str, list[int]] = OrderedDict()  # coordination ns, wire start, wire end
        self._blames: OrderedDict[str, str] = OrderedDict()
        self.ready: OrderedDict[str, list[Any]] = OrderedDict()

    def coordinate(self, request_id: str, nanoseconds: int) -> None:
        """Add coordination time."""
        self._entry(request_id)[0] += nanoseconds

    def transfer(self, request_id: str, start: int, end: int) -> None:
        """Extend the request's time on the wire (several transfers of one request overlap)."""
        entry = self._entry(request_id)
        entry[1] = min(entry[1] or start, start)
        entry[2] = max(entry[2], end)

    def blame(self, request_id: str, reason: str) -> None:
        """Say why a request's receive failed."""
        self._blames[request_id] = reason
        _trim(self._blames, self._limit)

    def report(self, request_id: str, cause: Cause | None = None) -> None:
        """Close a request's lease, or without a cause its receive: the facts wait for delivery."""
        coordination, start, end = self._open.pop(request_id, (0, 0, 0))
        if cause is None:
            blame = self._blames.pop(request_id, "")
            self.ready[receive_of(request_id)] = Fact("", 0, coordination, end - start, blame).encode()
        else:
            fact = Fact(cause.outcome, cause.heartbeats, coordination, end - start, "", cause.last_heartbeat_ns)
            self.ready[request_id] = fact.encode()
        _trim(self.ready, self._limit)

    def take(self) -> dict[str, list[Any]]:
        """Return the facts to deliver and forget them."""
        facts, self.ready = dict(self.ready), OrderedDict()
        return facts

    def _entry(self, request_id: str) -> list[int]:
        entry = self._open.setdefault(request_id, [0, 0, 0])
        _trim(self._open, self._limit)
        return entry


def _trim(table: OrderedDict[str, V], limit: int) -> None:
    while len(table) > limit:
        table.popitem(last=False)

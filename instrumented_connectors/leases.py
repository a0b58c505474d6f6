"""The lease ledger: every time that blocks are held without being computed on is one `lease` span with its reason."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from . import catalogue as names
from .metrics.facts import Cause, Fact, FactBook
from .request_spans import RequestEmitter
from .reuse_table import (
    ABORTED_AWAITING_RECEIVE,
    AWAITING_NEXT_TURN,
    FINISHED_AWAITING_TRANSFER,
    RESERVED,
)  # fmt: skip
from .spans import Attributes
from .traces import TraceBook


@dataclass(frozen=True)
class Terms:
    """What an engine's configuration says of its blocks.

    Attributes:
        block_size: tokens per block; None when unknown.
        block_bytes: bytes of a block in all layers and ranks; None when unknown.
        lease_ns: how long P keeps a finished request's blocks without a heartbeat.
        retention_ns: how long D keeps them for a next turn.
    """

    block_size: int | None = None
    block_bytes: int | None = None
    lease_ns: int | None = None
    retention_ns: int | None = None


@dataclass(slots=True)
class Lease:
    """Blocks that are held now (monotonic ns)."""

    reason: str
    start: int
    blocks: int


class LeaseLedger:
    """Open and end leases, one per request at a time.

    Args:
        emitter: makes the spans.
        traces: forgets a request whose last lease has ended.
        causes: why a lease ended, filled by the worker side when it lives in this process.
        limit: leases followed at most; the oldest are given up and counted in `evicted`.
        facts: what workers in other processes say; None when there are none.
    """

    def __init__(
        self,
        emitter: RequestEmitter,
        traces: TraceBook,
        causes: dict[str, Cause],
        limit: int,
        facts: FactBook | None = None,
    ) -> None:
        self._emitter = emitter
        self._traces = traces
        self._causes = causes
        self._limit = limit
        self._facts = facts
        self._open: OrderedDict[str, Lease] = OrderedDict()
        self.terms = Terms()
        self.evicted = 0

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._open

    def open(self, request_id: str, reason: str, at: int, blocks: int) -> None:
        """Begin a lease; one that is still open ends unknown."""
        if request_id in self._open:
            self._emit(request_id, self._open.pop(request_id), at, Cause("unknown"))
        self._open[request_id] = Lease(reason, at, blocks)
        while len(self._open) > self._limit:
            self._open.popitem(last=False)
            self.evicted += 1

    def receive(self, request_id: str, at: int, *, failed: bool) -> None:
        """End the wait for KV: it is here, or it won't come and the blocks are the engine's again."""
        lease = self._open.get(request_id)
        if lease is not None and lease.reason in {*RESERVED, ABORTED_AWAITING_RECEIVE}:
            self._emit(request_id, self._open.pop(request_id), at, Cause("released" if failed else "received"))

    def abort(self, request_id: str, at: int) -> None:
        """Note that a request ended while its KV was still to come: its blocks stay until that is over."""
        lease = self._open.get(request_id)
        if lease is not None and lease.reason in RESERVED:
            self._emit(request_id, self._open.pop(request_id), at, Cause("aborted"))
            self.open(request_id, ABORTED_AWAITING_RECEIVE, at, lease.blocks)

    def release(self, request_id: str, at: int) -> None:
        """End a finished request's lease; the worker knows why it ended."""
        lease = self._open.pop(request_id, None)
        cause = self._causes.get(request_id)
        if lease is None:
            return
        if cause is not None or self._facts is None:
            self._emit(request_id, lease, at, cause)
            return
        # The worker lives in another process; what it knows of this request arrives within a second or two.
        self._facts.wait(request_id, at, lambda fact: self._emit(request_id, lease, at, _cause_of(fact)))

    def close(self, at: int) -> None:
        """End what is still open when the engine shuts down."""
        for request_id, lease in self._open.items():
            self._emit(request_id, lease, at, Cause("unknown"))
        self._open.clear()

    def _emit(self, request_id: str, lease: Lease, at: int, cause: Cause | None) -> None:
        cause = cause or Cause("released")
        terms = self.terms
        ttl = {FINISHED_AWAITING_TRANSFER: terms.lease_ns, AWAITING_NEXT_TURN: terms.retention_ns}.get(lease.reason)
        is_renewed = lease.reason == FINISHED_AWAITING_TRANSFER
        attributes: Attributes = {
            "reason": lease.reason, "blocks": lease.blocks,
            "bytes": None if terms.block_bytes is None else lease.blocks * terms.block_bytes,
            "ttl_ns": ttl, "outcome": cause.outcome, "heartbeats": cause.heartbeats if is_renewed else None,
            "last_heartbeat_ns": cause.last_heartbeat_ns or None,
        }  # fmt: skip
        # That no next turn came is the ordinary end of a conversation.
        failed = cause.outcome == "expired" and lease.reason != AWAITING_NEXT_TURN
        self._emitter.emit(request_id, names.LEASE, lease.start, at, attributes, error=failed)
        if lease.reason not in RESERVED:
            self._traces.forget(request_id)


def _cause_of(fact: Fact | None) -> Cause | None:
    if fact is None or not fact.outcome:
        return None
    return Cause(fact.outcome, fact.heartbeats, fact.last_heartbeat_ns)

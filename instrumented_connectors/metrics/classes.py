"""Seconds of requests by class, so that the share of coordination, say, is a division of two rates."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .. import catalogue as spans
from . import catalogue as table
from .catalogue import Metric
from .facts import Fact, FactBook, receive_of

Add = Callable[[Metric, tuple[str, ...], float], None]

_CLASS_OF = {
    spans.PREFILL_QUEUE: table.QUEUE,
    spans.PREFILL_COMPUTE: table.COMPUTE,
    spans.DECODE_ADMISSION: table.QUEUE,
    spans.DECODE_QUEUE: table.QUEUE,
    spans.DECODE_FIRST_STEP: table.COMPUTE,
}


class ClassSeconds:
    """Charge each second of a request's path, as far as one engine sees it, to one class.

    A pulling engine charges its whole remote wait: the slowest rank's time on the wire is transfer, the rest
    coordination. In push the decode engine's wait overlaps the other engine's queue and compute: the prefill engine
    charges its wire and what it waited for a late registration, the decode engine only its completion lag.

    Args:
        mode: push, pull or bidirectional.
        facts: what the workers say of a request.
        add: takes the increments.
    """

    def __init__(self, mode: str, facts: FactBook, add: Add, limit: int = 4096) -> None:
        self._mode = mode
        self._facts = facts
        self._add = add
        self._limit = limit
        self._waited: OrderedDict[str, int] = OrderedDict()

    def add_span(self, name: str, request_id: str, nanoseconds: int) -> None:
        """Charge a scheduler-side span."""
        kind = _CLASS_OF.get(name)
        if kind is None:
            return
        if name == spans.PREFILL_QUEUE:
            # A readback lies inside the wait of a prefill request and is charged on its own.
            nanoseconds -= self._waited.pop(request_id, 0)
        self._charge(kind, nanoseconds)

    def receive(self, request_id: str, at: int, waited: int) -> None:
        """Charge a remote wait (ns) that has ended, once the worker has said what it was."""
        self._waited[request_id] = waited
        while len(self._waited) > self._limit:
            self._waited.popitem(last=False)
        self._facts.wait(receive_of(request_id), at, lambda fact: self._charge_receive(waited, fact))

    def _charge_receive(self, waited: int, fact: Fact | None) -> None:
        if self._mode == "push":
            self._charge(table.COORDINATION, fact.coordination_ns if fact else 0)
        elif fact is None:
            self._charge(table.UNATTRIBUTED, waited)
        else:
            transfer = min(fact.transfer_ns, waited)
            self._charge(table.TRANSFER, transfer)
            self._charge(table.COORDINATION, waited - transfer)

    def send(self, request_id: str, at: int) -> None:
        """Charge a push that has ended, once the worker has said what it was."""
        if self._mode == "push":
            self._facts.wait(request_id, at, self._charge_send)

    def _charge_send(self, fact: Fact | None) -> None:
        if fact is not None:
            self._charge(table.TRANSFER, fact.transfer_ns)
            self._charge(table.COORDINATION, fact.coordination_ns)

    def _charge(self, kind: str, nanoseconds: int) -> None:
        self._add(table.HANDOVER_SECONDS, (self._mode, kind), max(0, nanoseconds) / 1e9)

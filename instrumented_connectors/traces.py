"""Which trace a request belongs to, as seen by one process."""

from __future__ import annotations

from collections import OrderedDict

from .identity import TraceParent, derive_trace_id, request_key


class TraceBook:
    """Bounded map from request ids to trace contexts; requests without one get the derived trace id.

    Args:
        limit: requests remembered at most; the oldest are forgotten (they then get the derived id).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: OrderedDict[str, TraceParent] = OrderedDict()
        self._aliases: OrderedDict[str, str] = OrderedDict()

    def set_context(self, request_id: str, context: TraceParent) -> None:
        """Remember the explicit trace context of a request."""
        self._contexts[request_id] = context
        _trim(self._contexts, self._limit)

    def set_alias(self, request_id: str, peer_request_id: str) -> None:
        """Let a request derive its trace id from the peer's id (pull: D follows P, also when a router rewrites ids)."""
        self._aliases[request_id] = peer_request_id
        _trim(self._aliases, self._limit)

    def trace_id(self, request_id: str) -> int:
        """Return the 128-bit trace id of a request."""
        context = self._contexts.get(request_id)
        if context is not None:
            return context[0]
        return derive_trace_id(request_key(self._aliases.get(request_id, request_id)))

    def parent_id(self, request_id: str) -> int:
        """Return the caller's span id, 0 when no trace context reached this process."""
        context = self._contexts.get(request_id)
        return context[1] if context is not None else 0

    def flags(self, request_id: str) -> int | None:
        """Return the caller's trace flags, None when no trace context reached this process."""
        context = self._contexts.get(request_id)
        return context[2] if context is not None else None

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request."""
        self._contexts.pop(request_id, None)
        self._aliases.pop(request_id, None)


def _trim(table: OrderedDict[str, object] | OrderedDict[str, TraceParent] | OrderedDict[str, str], limit: int) -> None:
    while len(table) > limit:
        table.popitem(last=False)

"""The hot path: a bounded buffer that engine threads append to and one background thread drains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .events import Event

DEFAULT_CAPACITY = 1 << 17


class Recorder:
    """Bounded event buffer, safe for any number of appending threads and one draining thread.

    `record` never blocks and never raises: a full buffer drops the event and counts it in `dropped`.

    Args:
        capacity: events kept at most. 131,072 events are about 1,500 requests' worth, some 30 MB.
    """

    __slots__ = ("_events", "capacity", "dropped", "record", "recorded")

    record: Callable[[Event], None]

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.dropped = 0
        self.recorded = 0
        self._events: deque[Event] = deque()
        self.record = self._make_record()

    def _make_record(self) -> Callable[[Event], None]:
        """Bind the buffer in a closure: half the cost of attribute look-ups on an engine thread."""
        events, append, capacity = self._events, self._events.append, self.capacity

        def record(event: Event) -> None:
            # Without a lock several threads may pass the check at once: the bound is exceeded by the number of threads.
            if len(events) < capacity:
                append(event)
            else:
                self.dropped += 1

        return record

    def drain(self, limit: int = 1 << 16) -> list[Event]:
        """Remove and return the oldest events, at most `limit`."""
        events = self._events
        batch = [events.popleft() for _ in range(min(limit, len(events)))]
        self.recorded += len(batch)
        return batch

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        """Forget everything (after a fork the parent's events are the parent's)."""
        self._events.clear()
        self.dropped = self.recorded = 0

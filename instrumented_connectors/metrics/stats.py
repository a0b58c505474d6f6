"""vLLM's NIXL stats with one more list: the payloads of kvlens.

A list under one key, present in every instance, is what vLLM's own `aggregate` (and MultiConnector's) can extend.
"""

from __future__ import annotations

from typing import Any

from ..stock import import_stock
from .window import Payload

KEY = "kvlens"

Stock: Any = import_stock().NixlKVConnectorStats


class TransferStats(Stock):  # type: ignore[misc]
    """Stock stats and the payloads that travel with them from worker to scheduler to front end."""

    def reset(self) -> None:
        """Clear both."""
        super().reset()
        self.data[KEY] = []

    def is_empty(self) -> bool:
        """Return whether there is nothing to deliver, of either kind."""
        return bool(super().is_empty()) and not self.data[KEY]


def extend_stats(stock: Any, payload: Payload | None = None) -> TransferStats | None:
    """Return stock stats (None is none) with a payload, None when there is neither.

    All ranks of an engine must return one class: vLLM asserts it when it aggregates them.
    """
    if stock is None and payload is None:
        return None
    stats = TransferStats() if stock is None else TransferStats(data={**stock.data, KEY: []})
    if payload is not None:
        stats.data[KEY].append(payload)
    return stats


def take_payloads(stats: Any) -> list[Payload]:
    """Return the payloads inside stats, also inside those of a MultiConnector; empty when there are none."""
    data = getattr(stats, "data", None) or {}
    if KEY in data:
        return list(data[KEY])
    nested = (getattr(value, "data", {}) for value in data.values())
    return [payload for inner in nested if isinstance(inner, dict) for payload in inner.get(KEY, ())]


def stock_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return what vLLM's own log line is made of: the stats as they would be without kvlens."""
    return {key: value for key, value in data.items() if key != KEY}

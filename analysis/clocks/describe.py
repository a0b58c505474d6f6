"""What is known of a run's clocks as plain values: for the JSON document, the notes and `kvlens clocks`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from .align import Aligned
from .relation import Pair, Relation
from .strip import Floats

NS_PER_MS = 1e6
WIDEST = 20
"""Pairs that a breakdown describes: those without a number, then the widest."""


def describe_clocks(aligned: Aligned, unknown: int = 0) -> dict[str, Any] | None:
    """Describe the clocks of a run; None when all its processes share one.

    unknown: requests without a TTFT because it would be measured across unrelated clocks.
    """
    relation, messages = aligned.relation, aligned.messages
    if relation is None or messages is None:
        return None
    hosts = name_clocks(aligned)
    low, high = bound_all(relation)
    width = (high - low)[np.triu_indices(len(hosts), 1)] / NS_PER_MS
    known = width[np.isfinite(width)]
    places = np.column_stack(np.triu_indices(len(hosts), 1))
    widest = places[np.argsort(-np.where(np.isfinite(width), width, np.inf), kind="stable")][:WIDEST].tolist()
    kinds = Counter(dict(messages.group_by("kind").len().iter_rows()))
    used = sum(sum(pair.messages) for pair in relation.pairs)
    return {
        "reference": hosts[relation.reference],
        "clocks": [{"boot_id": name, "engines": host} for name, host in zip(relation.names, hosts, strict=True)],
        "messages": dict(kinds.most_common()),
        "messages_used": used,
        "impossible_orders": sum(pair.impossible for pair in relation.pairs),
        "jumps": sum(pair.jumps for pair in relation.pairs),
        "contradictions": relation.contradictions,
        "pairs": len(width),
        "unrelated_pairs": len(width) - len(known),
        "requests_without_ttft": unknown,
        "widest_pairs": rank_pairs([describe_pair(relation, one, other, hosts) for one, other in widest]),
        "width_ms": {"p50": round(float(np.median(known)), 6), "max": round(float(known.max()), 6)}
        if len(known)
        else None,
    }


def list_pairs(aligned: Aligned) -> list[dict[str, Any]]:
    """List every pair of clocks, the reference first (see describe_pair); empty when all processes share one."""
    relation = aligned.relation
    if relation is None:
        return []
    names = name_clocks(aligned)
    order = sorted(range(len(names)), key=lambda place: (place != relation.reference, names[place]))
    return [describe_pair(relation, one, other, names) for at, one in enumerate(order) for other in order[at + 1 :]]


def rank_pairs(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put pairs without a number first, then the widest."""
    return sorted(pairs, key=lambda pair: (pair["width_ms"] is not None, -(pair["width_ms"] or 0.0)))


def bound_all(relation: Relation) -> tuple[Floats, Floats]:
    """Bound all differences in the middle of the run: two matrices, ns."""
    count = len(relation.names)
    first, second = (axis.ravel() for axis in np.indices((count, count)))
    middle = np.full(count * count, (relation.starts[0] + relation.ends[-1]) / 2)
    low, high = relation.bound(first, second, middle)
    return low.reshape(count, count), high.reshape(count, count)


def name_clocks(aligned: Aligned) -> list[str]:
    """Name each clock by the engines that run on it; `router` for those of routers, the boot id where none is known."""
    assert aligned.relation is not None
    found: dict[str, list[str]] = {name: [] for name in aligned.relation.names}
    for boot in aligned.routers["r_boot"].drop_nulls().unique().sort():
        found.setdefault(boot, []).append("router")
    for side in ("p", "d"):
        engines = aligned.engines.select(f"{side}_boot", f"{side}_engine").drop_nulls().unique().sort(f"{side}_engine")
        for boot, engine in engines.iter_rows():
            found.setdefault(boot, []).append(engine)
    several = Counter(", ".join(names) for names in found.values())
    labels = {boot: ", ".join(dict.fromkeys(names)) or boot[:8] for boot, names in found.items()}
    return [
        labels[boot] if several[", ".join(found[boot])] < 2 else f"{labels[boot]} ({boot[:8]})"
        for boot in aligned.relation.names
    ]


def describe_pair(relation: Relation, one: int, other: int, names: list[str]) -> dict[str, Any]:
    """Describe one pair: offset of the second's wall clock at mid-run and its interval, drift, messages, route."""
    t = np.linspace(relation.starts[0], relation.ends[-1], 65)[1:-1]
    first, second = np.full(len(t), one), np.full(len(t), other)
    low, high = relation.bound(first, second, t)
    wall = float(relation.zero[other] - relation.zero[one])
    middle = len(t) // 2
    direct = find_direct(relation, one, other)
    span = len(relation.starts) // 2
    route = relation.find_route(one, other, span)
    known = bool(np.isfinite(low).all() and np.isfinite(high).all())
    low_mid, high_mid = float(low[middle]), float(high[middle])
    return {
        "first": names[one],
        "second": names[other],
        "offset_ms": round((wall + (low_mid + high_mid) / 2) / NS_PER_MS, 6) if known else None,
        "offset_low_ms": _to_ms(wall + low_mid),
        "offset_high_ms": _to_ms(wall + high_mid),
        "width_ms": round(float(np.median(high - low)) / NS_PER_MS, 6) if known else None,
        "widest_ms": round(float((high - low).max()) / NS_PER_MS, 6) if known else None,
        "drift_ppm": _describe_drift(direct, one),
        "messages": sum(direct.messages) if direct else 0,
        "messages_there": direct.messages[direct.first != one] if direct else 0,
        "messages_back": direct.messages[direct.first == one] if direct else 0,
        "impossible": direct.impossible if direct else 0,
        "jumps": direct.jumps if direct else 0,
        "route": [names[place] for place in route],
        "why_unknown": None if known else _explain(direct, one),
    }


def find_direct(relation: Relation, one: int, other: int) -> Pair | None:
    """Find what the messages between two clocks themselves say, if there are any."""
    wanted = (min(one, other), max(one, other))
    return next((pair for pair in relation.pairs if (pair.first, pair.second) == wanted), None)


def _describe_drift(direct: Pair | None, one: int) -> list[float] | None:
    """Bounds of the drift in the middle piece, ppm, where the pair's own messages bound it."""
    if direct is None:
        return None
    piece = direct.pieces[len(direct.pieces) // 2]
    if not (np.isfinite(piece.low).all() and np.isfinite(piece.high).all()):
        return None
    low, high = (round(value * 1e6, 3) for value in piece.drift)
    return [low, high] if direct.first == one else [-high, -low]


def _explain(direct: Pair | None, one: int) -> str:
    if direct is None:
        return "no messages between them, and no third clock that relates both"
    if not all(direct.messages):
        return "messages one way only"
    return "its messages contradict each other: the clock jumps too often to be followed"


def _to_ms(value: float) -> float | None:
    return round(value / NS_PER_MS, 6) if np.isfinite(value) else None

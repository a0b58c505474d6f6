"""What a worker's span builder knows of transfers, and how it reads vLLM's messages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .compat import PUSH_REGISTRATION_PREFIX
from .identity import base_id


@dataclass(slots=True)
class Transfer:
    """One NIXL transfer handle, from preparation to completion (monotonic ns)."""

    operation: str
    descriptors: int
    request_id: str | None
    peer_request_id: str | None
    prep_start: int
    prep_end: int
    thread: str
    posted: int = 0
    done: int | None = None
    last_pending: int = 0
    polls: int = 0
    poll_thread: str | None = None


@dataclass
class Tables:
    """What a worker knows of its requests; every table is bounded by the caller."""

    peers: OrderedDict[str, tuple[str | None, str | None]] = field(default_factory=OrderedDict)
    by_peer: OrderedDict[str, list[str]] = field(default_factory=OrderedDict)
    blocks_ready: OrderedDict[str, int] = field(default_factory=OrderedDict)
    registrations: OrderedDict[str, tuple[int, str | None]] = field(default_factory=OrderedDict)
    paired: OrderedDict[str, tuple[str | None, str | None]] = field(default_factory=OrderedDict)
    seen: OrderedDict[str, int] = field(default_factory=OrderedDict)
    heartbeats: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)  # count, Unix ns of the last
    ended: OrderedDict[str, str] = field(default_factory=OrderedDict)
    blames: OrderedDict[str, str] = field(default_factory=OrderedDict)  # request -> why its receive fails
    refusals: OrderedDict[str, str] = field(default_factory=OrderedDict)  # engine -> why its last handshake failed


def decode_registration(message: bytes) -> dict[str, Any] | None:
    """Return the payload of a push registration, None when it can't be read."""
    import msgspec  # comes with vLLM; the analysis doesn't need it

    try:
        data = msgspec.msgpack.decode(message[len(PUSH_REGISTRATION_PREFIX) :])
    except msgspec.DecodeError:
        return None
    return data if isinstance(data, dict) and isinstance(data.get("request_id"), str) else None


def match_base(request_id: str, candidates: Mapping[str, Any]) -> str | None:
    """Match ids as vLLM's push worker does: exactly, then without the random suffix."""
    if request_id in candidates:
        return request_id
    base = base_id(request_id)
    return next((name for name in candidates if base_id(name) == base), None)

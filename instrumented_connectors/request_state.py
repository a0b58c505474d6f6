"""Milestones of one request on one engine, as its scheduler's events tell them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestState:
    """Milestones of one request on this engine (monotonic ns)."""

    request_id: str
    is_prefill: bool
    arrived: int
    prompt_tokens: int
    peer_engine_id: str | None = None
    peer_request_id: str | None = None
    attempts: int = 0
    local_tokens: int = 0
    external_tokens: int = 0
    blocks: int = 0
    allocated: int | None = None
    told: int | None = None
    failed: bool = False
    scheduled: int | None = None
    first_token: int | None = None
    remaining: int = 0
    computed: int = 0
    steps: int = 0
    finish: tuple[int, str, int] | None = None  # monotonic ns, status, output tokens

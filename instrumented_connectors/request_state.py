"""Milestones of one request on one engine, as its scheduler's events tell them."""

from __future__ import annotations

from dataclasses import dataclass, field

FAILED = frozenset({"finished_error"})
"""vLLM's final statuses of a request that failed."""


@dataclass(slots=True)
class BlockUsage:
    """Blocks that a request has, and block-nanoseconds while it runs (not while they are leased)."""

    blocks: int = 0
    peak: int = 0
    block_ns: int = 0
    since: int | None = None

    def hold(self, at: int, blocks: int) -> None:
        """Note how many blocks the request has from now on."""
        self._account(at)
        self.blocks = blocks
        self.peak = max(self.peak, blocks)

    def run(self, at: int) -> None:
        """Begin to count."""
        if self.since is None:
            self.since = at

    def stop(self, at: int) -> None:
        """Stop counting."""
        self._account(at)
        self.since = None

    def _account(self, at: int) -> None:
        if self.since is not None:
            self.block_ns += self.blocks * max(0, at - self.since)
            self.since = at


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
    kept: int = 0
    usage: BlockUsage = field(default_factory=BlockUsage)

    @property
    def awaits_receive(self) -> bool:
        """Whether blocks were allocated for KV of which nothing was heard yet."""
        return self.allocated is not None and self.external_tokens > 0 and self.told is None

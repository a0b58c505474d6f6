"""Keep the slow and the failed: what the sampler rejects waits, within bounds, until its request is over here.

`prefill` isn't the end of a request on P: its transfer (push), its failures and the end of its lease come later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from opentelemetry.sdk.trace import ReadableSpan

from . import catalogue as names
from .catalogue import PREFIX
from .reuse_table import RESERVED
from .sampling import Decide, FlagsOf, Sampler, Stage, find_request, is_failed, put_bounded

# A request of which nothing was heard for so long is decided with what is known (P's lease is 30 s, renewed by D).
PATIENCE_S = 120.0


@dataclass(slots=True)
class Held:
    """The spans of one rejected request, and what they say about it (Unix ns)."""

    touched_s: float
    spans: list[ReadableSpan] = field(default_factory=list)
    arrived: int | None = None
    first: int | None = None
    ready: int = 0
    failed: bool = False
    over: bool = False

    def add(self, span: ReadableSpan) -> None:
        """Take one more span."""
        self.spans.append(span)
        start, end = span.start_time or 0, span.end_time or 0
        self.first = start if self.first is None else min(self.first, start)
        self.failed = self.failed or is_failed(span)
        if span.name in _ROOTS:
            self.arrived = start
            self.over = _is_last(span)
        if span.name == names.LEASE and (span.attributes or {}).get(PREFIX + "reason") not in RESERVED:
            self.over = True
        if span.name in _READY or (span.name == names.DECODE and not self.ready):
            self.ready = max(self.ready, end)

    def slow_ns(self) -> int:
        """Return how long the request took until its first token here, or until its KV was handed over (ns)."""
        start = self.arrived if self.arrived is not None else self.first
        return max(0, self.ready - start) if start is not None else 0


_ROOTS = (names.PREFILL, names.DECODE)
# What the first token waits for; `decode` itself also contains all later tokens.
_READY = (names.PREFILL, names.WIRE, names.DECODE_FIRST_STEP)
# A prefill request that finished so keeps its blocks for D: its transfer (push) and its lease are still to come.
_LEASED = ("finished_length_capped", "finished_stopped")


def _is_last(root: ReadableSpan) -> bool:
    attributes = root.attributes or {}
    return root.name == names.DECODE or attributes.get(PREFIX + "finish_reason") not in _LEASED


class KeepingSampler(Sampler):
    """Also keeps rejected requests that were slow or failed: their spans are held, within bounds, until that is known.

    Args:
        sink, decide, flags_of, limit: as in `Sampler`.
        keep_slow_ms: slower first tokens are kept; None keeps none for that.
        keep_failed: requests with a failed span are kept.
        held_spans: spans held at most; then the oldest request is decided with what is known.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sink: Stage,
        decide: Decide,
        flags_of: FlagsOf,
        limit: int,
        *,
        keep_slow_ms: float | None,
        keep_failed: bool,
        held_spans: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(sink, decide, flags_of, limit)
        self._slow_ns = None if keep_slow_ms is None else round(keep_slow_ms * 1e6)
        self._keep_failed = keep_failed
        self._held_limit = held_spans
        self._clock = clock
        self._waiting: OrderedDict[str, Held] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """Spans that wait for their request's verdict."""
        return self._held

    def _reject(self, request_id: str, span: ReadableSpan) -> None:
        if request_id in self._over:
            # Decided before; a failure that comes later is still worth its own span.
            self._reject_lone(span)
            return
        now = self._clock()
        held = self._waiting.get(request_id)
        if held is None:
            held = self._waiting[request_id] = Held(now)
        held.touched_s = now
        held.add(span)
        self._held += 1
        self._waiting.move_to_end(request_id)
        reason = self._reason(held)
        if reason:
            self.keep(request_id, reason)
        elif held.over:
            self._drop(request_id)
            self.outbox.append((request_id, None))
        self._decide_oldest(now)

    def _reject_lone(self, span: ReadableSpan) -> None:
        lasted = (span.end_time or 0) - (span.start_time or 0)
        lone = find_request(span) is None
        if self._keep_failed and is_failed(span):
            self._pass(span, "failed")
        elif lone and self._slow_ns is not None and lasted >= self._slow_ns:
            self._pass(span, "slow")
        else:
            self.sampled_out += 1

    def _reason(self, held: Held) -> str:
        if self._keep_failed and held.failed:
            return "failed"
        return "slow" if self._slow_ns is not None and held.slow_ns() >= self._slow_ns else ""

    def _keep(self, request_id: str, reason: str) -> None:
        super()._keep(request_id, reason)
        held = self._waiting.pop(request_id, None)
        for span in held.spans if held else ():
            self._held -= 1
            self._pass(span, reason)

    def _drop(self, request_id: str) -> None:
        held = self._waiting.pop(request_id, None)
        count = len(held.spans) if held else 0
        self._held -= count
        self.sampled_out += count
        put_bounded(self._over, request_id, None, self._limit)

    def _decide_oldest(self, now: float) -> None:
        while self._waiting:
            request_id, held = next(iter(self._waiting.items()))
            if self._held <= self._held_limit and now - held.touched_s < PATIENCE_S:
                return
            if not held.over and self._held > self._held_limit:
                self.evicted += 1
            self._drop(request_id)

    def close(self) -> None:
        """Decide what is held: the slow and the failed have gone on already, the rest is sampled out."""
        for request_id in list(self._waiting):
            self._drop(request_id)
        super().close()

    def restart(self) -> None:
        """Forget everything, as in a forked child."""
        self._waiting.clear()
        self._over.clear()
        self._held = 0
        super().restart()

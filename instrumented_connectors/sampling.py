"""Which requests' spans are exported: OpenTelemetry's samplers, and the slow and the failed beside them.

The sampler looks at a request's trace id and at its caller's sampled flag only, so that P, D and the router come to the
same answer without a message. What it rejects can still be kept: see `keeping`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from . import events
from .catalogue import KEPT, PREFIX, PROCESS_SPANS
from .events import Event

logger = logging.getLogger("kvlens")

_REQUEST_ID = PREFIX + "request_id"
_KEPT = PREFIX + KEPT.name
_SAMPLED_FLAG = 1
# As the SDK's TraceIdRatioBased: the low 64 bits of the trace id decide.
_RATIO_BITS = 64

V = TypeVar("V")

Decide = Callable[[int, int | None], bool]
"""(trace id, trace flags of the caller or None) -> whether the sampler takes the trace."""

FlagsOf = Callable[[str], int | None]
"""request id -> W3C trace flags of its caller, None when no trace context reached this process."""


class Stage(Protocol):
    """One stage of the way from finished spans to exporters; it passes `close` and `restart` on to the next."""

    def on_end(self, span: ReadableSpan) -> None: ...
    def close(self) -> None: ...
    def restart(self) -> None: ...


def make_decision(sampler: str, ratio: float) -> Decide | None:
    """Return the decision of OTEL_TRACES_SAMPLER; None when it takes everything and so needs no stage.

    Args:
        sampler: standard name; an unknown one is logged and replaced by the standard default.
        ratio: share of traces that a ratio sampler takes, 0 to 1.
    """
    parent_based = sampler.startswith("parentbased_")
    root = sampler.removeprefix("parentbased_")
    if root not in {"always_on", "always_off", "traceidratio"}:
        logger.warning("kvlens: unknown OTEL_TRACES_SAMPLER=%s; using parentbased_always_on", sampler)
        parent_based, root = True, "always_on"
    share = {"always_on": 1.0, "always_off": 0.0}.get(root, ratio)
    bound = round(share * (1 << _RATIO_BITS))
    mask = (1 << _RATIO_BITS) - 1
    if parent_based:
        return lambda trace_id, flags: trace_id & mask < bound if flags is None else bool(flags & _SAMPLED_FLAG)
    return None if share == 1.0 else lambda trace_id, flags: trace_id & mask < bound


class Sampler:
    """Passes on the spans of the requests that the sampler takes, and counts the others in `sampled_out`.

    Args:
        sink: next stage.
        decide: the sampler.
        flags_of: trace flags of a request's caller.
        limit: requests whose verdict is remembered at most.
    """

    def __init__(self, sink: Stage, decide: Decide, flags_of: FlagsOf, limit: int) -> None:
        self._sink = sink
        self._decide = decide
        self._flags_of = flags_of
        self._limit = limit
        # "" sampled, None rejected, else the reason for which it is kept. A request has one verdict for all its spans.
        self._verdicts: OrderedDict[str, str | None] = OrderedDict()
        # Why to keep requests of which no span has come yet.
        self._reasons: OrderedDict[str, str] = OrderedDict()
        self.sampled_out = 0
        self.kept = 0
        # What this process decided, for the workers of its scheduler: they see neither arrival nor end of a request.
        self.outbox: deque[tuple[str, str | None]] = deque(maxlen=limit)
        self.handlers = {events.KEEP: self._on_keep, events.VERDICTS: self._on_verdicts}
        self.evicted = 0

    @property
    def held(self) -> int:
        """Spans that wait for their request's verdict."""
        return 0

    def on_end(self, span: ReadableSpan) -> None:
        """Pass one span on, or not."""
        if span.name in PROCESS_SPANS:
            # Records of a process belong to no request: half of them would explain none.
            self._sink.on_end(span)
            return
        request_id = find_request(span)
        if request_id is None:
            context = span.get_span_context()
            if context is not None and self._decide(context.trace_id, None):
                self._pass(span, "")
            else:
                self._reject_lone(span)
            return
        verdict = self._verdict(request_id, span)
        if verdict is None:
            self._reject(request_id, span)
        else:
            self._pass(span, verdict)

    def _verdict(self, request_id: str, span: ReadableSpan) -> str | None:
        if request_id not in self._verdicts:
            context = span.get_span_context()
            taken = context is not None and self._decide(context.trace_id, self._flags_of(request_id))
            reason = self._reasons.pop(request_id, None)
            put_bounded(self._verdicts, request_id, "" if taken else reason, self._limit)
        return self._verdicts[request_id]

    def _pass(self, span: ReadableSpan, reason: str) -> None:
        if reason:
            self.kept += 1
            span = mark_kept(span, reason)
        self._sink.on_end(span)

    def _reject(self, request_id: str, span: ReadableSpan) -> None:
        self.sampled_out += 1

    def _reject_lone(self, span: ReadableSpan) -> None:
        self.sampled_out += 1

    def _on_keep(self, event: Event) -> None:
        self.keep(event[2], "hint")

    def _on_verdicts(self, event: Event) -> None:
        for request_id, reason in event[2].items():
            if reason is None:
                self._drop(request_id)
            else:
                self._keep(request_id, reason)

    def keep(self, request_id: str, reason: str) -> None:
        """Keep a request whatever the sampler says, here and on the workers; a sampled one stays merely sampled."""
        self._keep(request_id, reason)
        self.outbox.append((request_id, reason))

    def _drop(self, request_id: str) -> None:
        """Drop what is held of a request; nothing is, here."""

    def _keep(self, request_id: str, reason: str) -> None:
        if request_id not in self._verdicts:
            put_bounded(self._reasons, request_id, reason, self._limit)
        elif self._verdicts[request_id] is None:
            self._verdicts[request_id] = reason

    def close(self) -> None:
        """Close the next stage."""
        self._sink.close()

    def restart(self) -> None:
        """Forget everything, as in a forked child."""
        self._verdicts.clear()
        self._reasons.clear()
        self.outbox.clear()
        self.sampled_out = self.kept = self.evicted = 0
        self._sink.restart()


def put_bounded(table: OrderedDict[str, V], key: str, value: V, limit: int) -> None:
    """Put an entry into a table and drop the oldest ones beyond the limit."""
    table[key] = value
    while len(table) > limit:
        table.popitem(last=False)


def is_failed(span: ReadableSpan) -> bool:
    """Return whether a span says that something failed."""
    return span.status.status_code is StatusCode.ERROR


def mark_kept(span: ReadableSpan, reason: str) -> ReadableSpan:
    """Return the span with the reason why it was kept: statistics over sampled requests must leave it out."""
    return ReadableSpan(
        name=span.name, context=span.get_span_context(), parent=span.parent, resource=span.resource,
        attributes={**(span.attributes or {}), _KEPT: reason}, events=span.events, links=span.links, kind=span.kind,
        status=span.status, start_time=span.start_time, end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )  # fmt: skip


def find_request(span: ReadableSpan) -> str | None:
    """Return the id of the request that a span belongs to, None for a handshake and the like."""
    value = (span.attributes or {}).get(_REQUEST_ID)
    return value if isinstance(value, str) else None

"""The way of a finished span: sampler -> level of detail -> exporters. A stage that would do nothing isn't built."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan

from . import catalogue as names
from .keeping import KeepingSampler
from .sampling import FlagsOf, Sampler, Stage, is_failed, make_decision
from .settings import SamplingSettings

logger = logging.getLogger("kvlens")

_REQUEST = frozenset({
    names.PREFILL, names.PREFILL_REMOTE_WAIT, names.DECODE, names.DECODE_REMOTE_WAIT, names.DECODE_FIRST_STEP,
    names.FAILURE, names.DECISION, names.VALIDATION, names.ROUTER_REQUEST,
})  # fmt: skip
_TRANSFER = _REQUEST | {names.LEASE, names.HANDSHAKE, names.PAIRING, names.POST, names.WIRE, names.COMPLETION}

DETAIL: dict[str, frozenset[str] | None] = {"request": _REQUEST, "transfer": _TRANSFER, "full": None}
"""Span names of each level of KVLENS_DETAIL; None is all. A failed span passes at every level."""


class DetailFilter:
    """Passes on the spans of one level of detail, and counts the others in `filtered`.

    Args:
        sink: next stage.
        wanted: names that pass.
    """

    def __init__(self, sink: Stage, wanted: frozenset[str]) -> None:
        self._sink = sink
        self._wanted = wanted
        self.filtered = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Pass one span on, or not."""
        if span.name in self._wanted or is_failed(span):
            self._sink.on_end(span)
        else:
            self.filtered += 1

    def close(self) -> None:
        """Close the next stage."""
        self._sink.close()

    def restart(self) -> None:
        """Forget everything, as in a forked child."""
        self.filtered = 0
        self._sink.restart()


@dataclass(frozen=True)
class Sinks:
    """The chain of one process: its first stage, and those that count; None for a stage that isn't needed."""

    first: Stage
    sampler: Sampler | None
    detail: DetailFilter | None


def build_sinks(settings: SamplingSettings, pipeline: Stage, flags_of: FlagsOf, limit: int) -> Sinks:
    """Build the stages that the settings ask for in front of the pipeline.

    The level of detail comes after the sampler, which needs spans of every level to know the slow and the failed.

    Args:
        settings: sampler and level of detail.
        pipeline: last stage.
        flags_of: trace flags of a request's caller.
        limit: requests remembered at most.
    """
    first = pipeline
    detail: DetailFilter | None = None
    sampler: Sampler | None = None
    wanted = _wanted(settings.detail)
    if wanted is not None:
        first = detail = DetailFilter(first, wanted)
    decide = make_decision(settings.sampler, settings.ratio)
    if decide is not None and settings.keeps:
        first = sampler = KeepingSampler(
            first, decide, flags_of, limit, keep_slow_ms=settings.keep_slow_ms, keep_failed=settings.keep_failed,
            held_spans=settings.held_spans,
        )  # fmt: skip
    elif decide is not None:
        first = sampler = Sampler(first, decide, flags_of, limit)
    return Sinks(first, sampler, detail)


def _wanted(level: str) -> frozenset[str] | None:
    if level not in DETAIL:
        logger.warning("kvlens: unknown KVLENS_DETAIL=%s (one of %s); using full", level, ", ".join(DETAIL))
    return DETAIL.get(level)

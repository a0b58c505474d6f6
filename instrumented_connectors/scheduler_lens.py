"""What the scheduler-side facade records. Each method is called beside a stock call, never around it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from . import events
from .events import MATCH, STEP, STEP_END
from .guard import guarded, report
from .identity import TraceParent, request_trace_context
from .offers import read_fields
from .prefix_digest import PARAMETER
from .recorder import Recorder

StepMark = tuple[int, int, int, int]
"""Number of a step, its scheduled tokens, its requests, and how many requests were preempted for it."""


class NullSchedulerLens:
    """Records nothing: the choice when kvlens is off or a required seam is missing."""

    def arrived(self, request: Any) -> None: ...
    def matched(self, request: Any, local_tokens: int, result: Any) -> None: ...
    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None: ...
    def scheduled(self, output: Any) -> None: ...
    def attach(self, metadata: Any) -> None: ...
    def told(self, output: Any) -> None: ...
    def finished(self, request: Any, blocks: Any, result: Any) -> None: ...
    def step_ended(self) -> None: ...


class SchedulerLens(NullSchedulerLens):
    """Appends one event per scheduler call.

    Args:
        recorder: receives the events.
        consumes: this engine decodes (kv_consumer or kv_both), so a request without transfer parameters is recorded
            too: it should have had some.
    """

    def __init__(self, recorder: Recorder, *, consumes: bool) -> None:
        self._record = recorder.record
        self._consumes = consumes
        self._contexts: dict[str, TraceParent] = {}
        self._step = self._built = 0
        self._mark: StepMark = (0, 0, 0, 0)
        self.wake: Callable[[], None] = lambda: None
        """Wakes the background thread; set by who knows it."""

    @guarded
    def arrived(self, request: Any) -> None:
        """Record that the scheduler has a request."""
        params = request.kv_transfer_params
        if not isinstance(params, dict):
            params = {}
        context = request_trace_context(getattr(request, "trace_headers", None), params)
        if context is not None:
            self._contexts[request.request_id] = context
        is_prefill = bool(params.get("do_remote_decode"))
        self._record((
            events.ARRIVE, perf_counter_ns(), request.request_id, request.num_prompt_tokens, is_prefill,
            bool(params.get("do_remote_prefill")) or (self._consumes and not is_prefill),
            _text(params.get("remote_engine_id")), _text(params.get("remote_request_id")), context,
        ))  # fmt: skip
        if is_prefill or params.get("do_remote_prefill"):
            self._record_offer(request, params, is_prefill)

    def _record_offer(self, request: Any, params: dict[str, Any], is_prefill: bool) -> None:
        prefix = params.get(PARAMETER) if is_prefill else None
        tokens = None if prefix is None else request.prompt_token_ids
        now = perf_counter_ns()
        self._record((events.OFFER, now, request.request_id, is_prefill, read_fields(params), prefix, tokens))
        if prefix is not None:
            # A prompt that doesn't match is to be named before its first token.
            self.wake()

    # What follows runs in every step: the guard is written out, since the decorator's call costs as much as the event.

    def matched(self, request: Any, local_tokens: int, result: Any) -> None:
        """Record what the connector offered for a request that the scheduler considers."""
        try:
            self._record((MATCH, perf_counter_ns(), request.request_id, local_tokens, result[0]))
        except Exception as error:
            report("SchedulerLens.matched", error)

    def scheduled(self, output: Any) -> None:
        """Record the begin of a step, and number it."""
        try:
            now, scheduled = perf_counter_ns(), output.num_scheduled_tokens
            step = self._step = self._step + 1
            gone = getattr(output, "preempted_req_ids", None) or ()
            preempted = len(gone)
            self._mark = (step, getattr(output, "total_num_scheduled_tokens", 0), len(scheduled), preempted)
            running, growth = getattr(output, "scheduled_cached_reqs", None), None
            if running is not None and running.req_ids:
                growth = (running.req_ids, getattr(running, "resumed_req_ids", ()), running.new_block_ids)
            self._record((
                STEP, now, scheduled, output.scheduled_new_reqs, step, self._built, preempted,
                tuple(gone) if gone else (), growth,
            ))  # fmt: skip
        except Exception as error:
            report("SchedulerLens.scheduled", error)

    def step_ended(self) -> None:
        """Record the end of a step."""
        try:
            self._record((STEP_END, perf_counter_ns(), self._built))
        except Exception as error:
            report("SchedulerLens.step_ended", error)

    def attach(self, metadata: Any) -> None:
        """Send the step's number, and explicit trace contexts, to this engine's own workers.

        They travel on the metadata that goes there anyway.
        """
        try:
            metadata.kvlens_step = self._mark
            if self._contexts:
                metadata.kvlens_contexts = self._contexts
                self._contexts = {}
            self._built = perf_counter_ns()
        except Exception as error:
            report("SchedulerLens.attach", error)

    # What follows runs once or twice per request.

    @guarded
    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """Record that blocks were allocated."""
        count = sum(map(len, getattr(blocks, "blocks", ())))
        self._record((events.ALLOC, perf_counter_ns(), request.request_id, external_tokens, count))

    @guarded
    def told(self, output: Any) -> None:
        """Record the transfers that the workers reported."""
        received, sent = output.finished_recving, output.finished_sending
        if received or sent:
            failed = getattr(output, "failed_recving", None)
            now = perf_counter_ns()
            self._record((events.TOLD, now, tuple(received or ()), tuple(sent or ()), frozenset(failed or ())))

    @guarded
    def finished(self, request: Any, blocks: Any, result: Any) -> None:
        """Record that a request ended, and whether its blocks stay."""
        count = sum(len(group) if isinstance(group, (list, tuple)) else 1 for group in blocks)
        self._record((
            events.FINISH, perf_counter_ns(), request.request_id, request.status.name.lower(),
            request.num_computed_tokens, request.num_output_tokens, count, bool(result and result[0]),
        ))  # fmt: skip


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

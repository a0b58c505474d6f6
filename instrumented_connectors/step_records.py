"""Engine steps -> `step.batch` spans: what each step took, where, and who was in it.

The scheduler's half has begin, end and who was scheduled; the worker's half has the connector's time on its thread.
They meet by the number of the step, which the scheduler sends along on the connector metadata: an exact join.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from . import catalogue as names
from . import events
from .events import Event
from .identity import derive_trace_id
from .spans import SpanFactory
from .step_columns import DECODE, MAX_ROWS, PROMPT, STEP_SCHEMA, Columns, IntColumns, Members
from .step_slow import SlowSteps, StepTimes

FLUSH_NS = 1_000_000_000
MAX_OPEN_STEPS = 64


class StepRecords:
    """Pack the steps of one process into batches; the scheduler's and the worker's rows in batches of their own.

    Args:
        factory: makes the spans.
        limit: requests whose prompt length is remembered at most.
    """

    def __init__(self, factory: SpanFactory, limit: int) -> None:
        self.rank = 0
        self.evicted = 0
        self._scheduler = SchedulerSteps(factory, limit)
        self._worker = WorkerSteps(factory, self)
        self.handlers = {**self._scheduler.handlers, events.WORKER_STEP: self._worker.on_step}

    @property
    def steps(self) -> int:
        """Steps with work so far, to see whether the engine is idle."""
        return self._scheduler.busy_steps + self._worker.busy_steps

    def tick(self, now: int) -> None:
        """Emit what has waited long enough (called every few hundred milliseconds)."""
        self._scheduler.tick(now)
        self._worker.tick(now)

    def close(self) -> None:
        """Emit everything."""
        self._scheduler.flush()
        self._worker.flush()

    def restart(self) -> None:
        """Forget everything, as in a forked child."""
        self._scheduler.restart()
        self._worker.restart()


class SchedulerSteps:
    """The scheduler's half: begin and end of a step, who was scheduled and for what."""

    def __init__(self, factory: SpanFactory, limit: int) -> None:
        self._factory = factory
        self._limit = limit
        self.handlers = {
            events.ARRIVE: self._on_arrive,
            events.FINISH: self._on_finish,
            events.STEP: self._on_step,
            events.STEP_END: self._on_end,
        }
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.busy_steps = 0
        self._prompts: OrderedDict[str, int] = OrderedDict()
        self._remaining: dict[str, int] = {}
        self._finished: list[str] = []
        self._open: deque[Event] = deque(maxlen=MAX_OPEN_STEPS)
        self._built: dict[int, int] = {}
        self._decoding: Mapping[str, int] = {}  # who was in the last row, while all of them decode
        self._columns: Columns | None = None
        self._members = Members()

    def _on_arrive(self, event: Event) -> None:
        self._prompts[event[2]] = event[3]
        while len(self._prompts) > self._limit:
            self._remaining.pop(self._prompts.popitem(last=False)[0], None)

    def _on_finish(self, event: Event) -> None:
        self._prompts.pop(event[2], None)
        if self._open:
            # The step that it ends in is still open, and its row says what the request computed.
            self._finished.append(event[2])
        else:
            self._remaining.pop(event[2], None)

    def _on_step(self, event: Event) -> None:
        # The step before was built by the time this one began; its figure comes with this event.
        if self._open and event[5]:
            self._built[self._open[-1][4]] = event[5]
        self._open.append(event)
        for new in event[3]:
            prompt = self._prompts.get(new.req_id)
            if prompt is not None and prompt > new.num_computed_tokens:
                self._remaining[new.req_id] = prompt - new.num_computed_tokens

    def _on_end(self, event: Event) -> None:
        # Steps end in the order in which they began, also with several in flight.
        if not self._open:
            return
        _, begin, scheduled, _, step, _, preempted, *_ = self._open.popleft()
        end = event[1]
        build = self._built.pop(step, event[2] if len(event) > 2 else 0)
        columns = self._columns
        if columns is None or columns.rows >= MAX_ROWS or not columns.follows(step) or end - columns.begin >= FLUSH_NS:
            self.flush()
            columns = self._columns = Columns(step, begin)
        row = columns.rows
        prompt_tokens, kinds = self._sort(scheduled)
        is_row = columns.add(
            step, begin, end, idle=not scheduled and not preempted, prompt_tokens=prompt_tokens,
            decode_tokens=sum(scheduled.values()) - prompt_tokens, requests=len(scheduled), preempted=preempted,
            build_ns=max(0, build - begin) if build else 0,
        )  # fmt: skip
        if kinds is not None and is_row:
            self._members.set_row(row, kinds)
        self.busy_steps += bool(scheduled)
        if self._finished:
            for request_id in self._finished:
                self._remaining.pop(request_id, None)
            self._finished.clear()

    def _sort(self, scheduled: Mapping[str, int]) -> tuple[int, Mapping[str, int] | None]:
        """Return the prompt tokens of a step, and request -> kind; None when nothing changed since the last row."""
        remaining = self._remaining
        if not remaining and scheduled.keys() == self._decoding.keys():
            return 0, None
        prompt_tokens, kinds = 0, {}
        for request_id, tokens in scheduled.items():
            left = remaining.get(request_id, 0)
            kinds[request_id] = PROMPT if left > 0 else DECODE
            if left > 0:
                prompt_tokens += min(tokens, left)
                if left > tokens:
                    remaining[request_id] = left - tokens
                else:
                    del remaining[request_id]
        self._decoding = {} if PROMPT in kinds.values() else kinds
        return prompt_tokens, kinds

    def tick(self, now: int) -> None:
        """Emit the batch when its first row is old enough."""
        if self._columns is not None and now - self._columns.begin >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Emit the batch, if there is one."""
        columns, self._columns = self._columns, None
        members, self._members = self._members, Members()
        self._decoding = {}
        if columns is not None and columns.rows:
            request_ids, runs = members.freeze(columns.rows)
            emit_batch(self._factory, columns, "scheduler", {**columns.freeze(), **runs}, request_ids=request_ids)


class WorkerSteps:
    """The worker's half: the connector's time on the thread that runs the model."""

    def __init__(self, factory: SpanFactory, owner: StepRecords) -> None:
        self._factory = factory
        self._owner = owner
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.busy_steps = 0
        self._columns: Columns | None = None
        self._slow = SlowSteps()
        self._last_end = 0
        self._thread = ""

    def on_step(self, event: Event) -> None:
        """Take one step of the worker."""
        _, end, mark, begun, load, loaded, save_ns, poll, thread = event
        step, tokens, requests, preempted = mark or (-1, 0, 0, 0)
        begun = begun or load or poll
        submit = loaded - load
        columns = self._columns
        if columns is None or columns.rows >= MAX_ROWS or end - columns.begin >= FLUSH_NS or not columns.follows(step):
            self.flush()
            columns = self._columns = Columns(step, begun)
        self._thread = thread
        columns.add(
            step, begun, end, idle=not tokens, submit_offset_ns=load - begun if load else 0, submit_ns=submit,
            save_ns=save_ns, poll_ns=end - poll,
        )  # fmt: skip
        if tokens:
            self.busy_steps += 1
            gap = begun - self._last_end if self._last_end else 0
            times = StepTimes(submit, end - poll, save_ns, poll - begun - submit - save_ns, gap)
            self._judge((step, tokens, requests, preempted), times, end)
        self._last_end = end

    def _judge(self, mark: tuple[int, int, int, int], times: StepTimes, end: int) -> None:
        step, tokens, requests, preempted = mark
        cause = self._slow.judge(times, pure=tokens == requests, preempted=preempted)
        if cause:
            attributes: dict[str, Any] = {
                "step": step, "cause": cause, "bound_ns": self._slow.bound_ns, "submit_ns": times.post,
                "poll_ns": times.poll, "save_ns": times.save, "execution_ns": times.execution, "gap_ns": times.gap,
                "tokens": tokens, "requests": requests, "preempted": preempted, "suppressed": self._slow.suppressed,
                "rank": self._owner.rank, "thread": self._thread,
            }  # fmt: skip
            trace_id = derive_trace_id(f"step.slow {self._factory.engine_id} {self._owner.rank} {end}")
            self._factory.emit(names.STEP_SLOW, trace_id, end - times.period, end, attributes)

    def tick(self, now: int) -> None:
        """Emit the batch when its first row is old enough."""
        if self._columns is not None and now - self._columns.begin >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Emit the batch, if there is one."""
        columns, self._columns = self._columns, None
        if columns is not None and columns.rows:
            emit_batch(self._factory, columns, "worker", columns.freeze(), rank=self._owner.rank, thread=self._thread)


def emit_batch(
    factory: SpanFactory, columns: Columns, side: str, arrays: IntColumns, *, rank: int | None = None,
    request_ids: tuple[str, ...] = (), thread: str = "",
) -> None:  # fmt: skip
    """Emit one batch as a span from the begin of its first row to the end of its last."""
    attributes: dict[str, Any] = {
        "step_schema": STEP_SCHEMA, "side": side, "rank": rank, "thread": thread or None, "rows": columns.rows,
        "first_step": columns.first_step, "request_ids": request_ids or None, **{k: v for k, v in arrays.items() if v},
    }  # fmt: skip
    trace_id = derive_trace_id(f"step.batch {factory.engine_id} {os.getpid()} {side} {rank} {columns.begin}")
    factory.emit(names.STEP_BATCH, trace_id, columns.begin, columns.end, attributes)

"""Keep-hints between engines, and verdicts inside one.

In pull, P's answer tells D that a request was slow, so that both sides keep it. The hint is one key in the transfer
parameters, which routers hand on whole and stock connectors ignore. It can only help where one leg follows the other:
in push both legs are sent at once. A scheduler's verdicts reach its workers, which may be processes of their own, on
the connector metadata that goes there anyway.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from time import perf_counter_ns
from typing import Any

from . import events
from .guard import guarded
from .recorder import Recorder
from .scheduler_lens import SchedulerLens
from .settings import SamplingSettings
from .worker_lens import WorkerLens

Outbox = deque[tuple[str, str | None]]

HINT = "kvlens_keep"
_MAX_OPEN = 16384


class HintReadingLens(SchedulerLens):
    """Also records that the transfer parameters carry a hint, and sends verdicts to this engine's own workers.

    Args:
        recorder, consumes: as in `SchedulerLens`.
        outbox: verdicts of this process, see `Sampler.outbox`.
    """

    def __init__(self, recorder: Recorder, *, consumes: bool, outbox: Outbox) -> None:
        super().__init__(recorder, consumes=consumes)
        self._outbox = outbox

    @guarded
    def arrived(self, request: Any) -> None:
        """Record that the scheduler has a request, and whether somebody wants it kept."""
        super().arrived(request)
        params = request.kv_transfer_params
        if isinstance(params, dict) and params.get(HINT):
            self._record((events.KEEP, perf_counter_ns(), request.request_id))

    @guarded
    def attach(self, metadata: Any) -> None:
        """Send verdicts along with the rest."""
        super().attach(metadata)
        waiting = len(self._outbox)
        if waiting:
            metadata.kvlens_verdicts = dict(self._outbox.popleft() for _ in range(waiting))


class VerdictReadingLens(WorkerLens):
    """Also records the verdicts that the scheduler sent."""

    @guarded
    def loading(self, metadata: Any) -> None:
        """Record what the scheduler handed to this worker."""
        super().loading(metadata)
        verdicts = getattr(metadata, "kvlens_verdicts", None)
        if verdicts:
            self._record((events.VERDICTS, perf_counter_ns(), verdicts))


class HintGivingLens(HintReadingLens):
    """Also puts a hint into the transfer parameters that a slow prefill answers with.

    Args:
        recorder, consumes, outbox: as in `HintReadingLens`.
        slow_ms: a prefill that takes longer from arrival to its answer is slow.
    """

    def __init__(self, recorder: Recorder, *, consumes: bool, outbox: Outbox, slow_ms: float) -> None:
        super().__init__(recorder, consumes=consumes, outbox=outbox)
        self._slow_ns = round(slow_ms * 1e6)
        self._since: OrderedDict[str, int] = OrderedDict()

    @guarded
    def arrived(self, request: Any) -> None:
        """Record that the scheduler has a request, and remember since when."""
        super().arrived(request)
        params = request.kv_transfer_params
        if isinstance(params, dict) and params.get("do_remote_decode"):
            self._since[request.request_id] = perf_counter_ns()
            if len(self._since) > _MAX_OPEN:
                self._since.popitem(last=False)

    @guarded
    def finished(self, request: Any, blocks: Any, result: Any) -> None:
        """Record that a request ended, and hint that it was slow."""
        super().finished(request, blocks, result)
        since = self._since.pop(request.request_id, None)
        answer = result[1] if result else None
        if since is not None and isinstance(answer, dict) and perf_counter_ns() - since >= self._slow_ns:
            answer[HINT] = "slow"


def make_scheduler_lens(
    recorder: Recorder, sampling: SamplingSettings, *, consumes: bool, outbox: Outbox | None
) -> SchedulerLens:
    """Return the lens that the sampling settings need: hints and verdicts only where requests are sampled."""
    if outbox is None or not _decides(sampling):
        return SchedulerLens(recorder, consumes=consumes)
    if sampling.keep_slow_ms is not None:
        return HintGivingLens(recorder, consumes=consumes, outbox=outbox, slow_ms=sampling.keep_slow_ms)
    return HintReadingLens(recorder, consumes=consumes, outbox=outbox)


def make_worker_lens(recorder: Recorder, sampling: SamplingSettings, *, follows_peer: bool) -> WorkerLens:
    """Return the worker's lens that the sampling settings need."""
    return (VerdictReadingLens if _decides(sampling) else WorkerLens)(recorder, follows_peer=follows_peer)


def _decides(sampling: SamplingSettings) -> bool:
    return sampling.samples or sampling.keeps

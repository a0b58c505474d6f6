"""Keep-hints: in pull, P's answer tells D that a request was slow, so that both sides keep it.

The hint is one key in the transfer parameters, which routers hand on whole and stock connectors ignore. It can only
help where one leg follows the other: in push both legs are sent at once.
"""

from __future__ import annotations

from collections import OrderedDict
from time import perf_counter_ns
from typing import Any

from . import events
from .guard import guarded
from .recorder import Recorder
from .scheduler_lens import SchedulerLens
from .settings import SamplingSettings

HINT = "kvlens_keep"
_MAX_OPEN = 16384


class HintReadingLens(SchedulerLens):
    """Also records that the transfer parameters carry a hint."""

    @guarded
    def arrived(self, request: Any) -> None:
        """Record that the scheduler has a request, and whether somebody wants it kept."""
        super().arrived(request)
        params = request.kv_transfer_params
        if isinstance(params, dict) and params.get(HINT):
            self._record((events.KEEP, perf_counter_ns(), request.request_id))


class HintGivingLens(HintReadingLens):
    """Also puts a hint into the transfer parameters that a slow prefill answers with.

    Args:
        recorder, consumes: as in `SchedulerLens`.
        slow_ms: a prefill that takes longer from arrival to its answer is slow.
    """

    def __init__(self, recorder: Recorder, *, consumes: bool, slow_ms: float) -> None:
        super().__init__(recorder, consumes=consumes)
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


def make_scheduler_lens(recorder: Recorder, sampling: SamplingSettings, *, consumes: bool) -> SchedulerLens:
    """Return the lens that the sampling settings need: hints are only given and read where requests are sampled."""
    if sampling.keep_slow_ms is not None and sampling.sampler != "always_on":
        return HintGivingLens(recorder, consumes=consumes, slow_ms=sampling.keep_slow_ms)
    if sampling.samples:
        return HintReadingLens(recorder, consumes=consumes)
    return SchedulerLens(recorder, consumes=consumes)

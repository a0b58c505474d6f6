"""Rejected requests that were slow, failed or hinted at are kept whole; the rest is counted, and memory is bounded."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from instrumented_connectors import events
from instrumented_connectors.clock import Clock
from instrumented_connectors.keep_hints import (
    HINT,
    HintGivingLens,
    HintReadingLens,
    VerdictReadingLens,
    make_scheduler_lens,
    make_worker_lens,
)
from instrumented_connectors.keeping import PATIENCE_S, KeepingSampler
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens
from instrumented_connectors.settings import SamplingSettings
from instrumented_connectors.spans import SpanFactory
from instrumented_connectors.worker_lens import WorkerLens

MS = 1_000_000
SLOW_MS = 100.0


class Bench:
    """A keeping sampler that rejects everything, with a clock in the test's hand; times of spans are milliseconds."""

    def __init__(
        self, keep_slow_ms: float | None = SLOW_MS, keep_failed: bool = True, held_spans: int = 1000, limit: int = 100
    ) -> None:
        self.out: list[tuple[str, str | None, str]] = []
        self.now = 0.0
        self.sampler = KeepingSampler(
            self, lambda *_: False, lambda _: None, limit, keep_slow_ms=keep_slow_ms, keep_failed=keep_failed,
            held_spans=held_spans, clock=lambda: self.now,
        )  # fmt: skip
        self.factory = SpanFactory(self.sampler, Resource({}), Clock(lambda: 0, lambda: 1 << 60, "boot"), "E")

    def on_end(self, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        request_id = attributes.get("kv_transfer.request_id")
        self.out.append((span.name, request_id, str(attributes.get("kv_transfer.kept", ""))))  # type: ignore[arg-type]

    def close(self) -> None: ...
    def restart(self) -> None: ...

    def emit(self, name: str, start: float, end: float, request_id: str | None = "r", **more: Any) -> None:
        error = more.pop("error", False)
        attributes = {"request_id": request_id, **more}
        self.factory.emit(name, 1, round(start * MS), round(end * MS), attributes, error=error)

    def prefill(self, end: float, request_id: str = "r", reason: str = "finished_length_capped") -> None:
        self.emit("prefill.queue", 0, 1, request_id)
        self.emit("prefill", 0, end, request_id, finish_reason=reason)

    @property
    def account(self) -> tuple[int, int, int]:
        return self.sampler.kept, self.sampler.sampled_out, self.sampler.held


def test_a_fast_decode_is_dropped_at_its_end() -> None:
    bench = Bench()
    bench.emit("decode.admission", 0, 1)
    bench.emit("decode.first_step", 50, 99)
    assert bench.account == (0, 0, 2)
    # Later tokens don't make a first token slow.
    bench.emit("decode", 0, 5000)
    assert bench.account == (0, 3, 0)
    assert bench.out == []


def test_a_slow_decode_is_kept_whole_and_marked() -> None:
    bench = Bench()
    bench.emit("decode.admission", 0, 1)
    bench.emit("decode.first_step", 50, 100)
    bench.emit("decode", 0, 5000)
    bench.emit("completion", 5000, 5001)
    assert bench.out == [
        (name, "r", "slow") for name in ("decode.admission", "decode.first_step", "decode", "completion")
    ]
    assert bench.account == (4, 0, 0)


def test_a_decode_without_a_first_token_is_judged_by_its_end() -> None:
    bench = Bench()
    bench.emit("decode", 0, 100, finish_reason="finished_aborted")
    assert bench.out == [("decode", "r", "slow")]


def test_prefill_waits_for_its_transfer_and_lease() -> None:
    bench = Bench()
    bench.prefill(50)
    assert bench.account == (0, 0, 2)
    bench.emit("wire", 60, 99)
    # A lease is released when P next looks, which may be long after: it is no measure of slowness.
    bench.emit("lease", 50, 9000)
    assert bench.account == (0, 4, 0)
    bench.prefill(50, "late")
    bench.emit("wire", 60, 100, "late")
    bench.emit("lease", 50, 100, "late")
    assert [name for name, *_ in bench.out] == ["prefill.queue", "prefill", "wire", "lease"]


def test_a_prefill_that_leaves_no_lease_is_decided_at_once() -> None:
    bench = Bench()
    bench.prefill(50, reason="finished_aborted")
    assert bench.account == (0, 2, 0)


def test_a_failed_request_is_kept_whole() -> None:
    bench = Bench()
    bench.prefill(5)
    bench.emit("post", 6, 7, error=True)
    bench.emit("lease", 5, 9, error=True)
    assert [name for name, _, why in bench.out if why == "failed"] == ["prefill.queue", "prefill", "post", "lease"]


def test_a_failure_after_the_decision_is_kept_alone() -> None:
    bench = Bench()
    bench.emit("decode", 0, 5)
    bench.emit("lease", 5, 480_000, error=True)
    bench.emit("notification", 480_000, 480_000)
    assert bench.out == [("lease", "r", "failed")]
    assert bench.account == (1, 2, 0)


def test_keeping_one_kind_leaves_the_other_out() -> None:
    bench = Bench(keep_failed=False)
    bench.emit("decode", 0, 5, error=True)
    assert bench.out == []
    bench = Bench(keep_slow_ms=None)
    bench.emit("decode.first_step", 50, 5000)
    bench.emit("decode", 0, 5000)
    assert bench.out == []


def test_a_span_of_no_request_is_judged_by_itself() -> None:
    bench = Bench()
    bench.emit("handshake", 0, 50, None)
    bench.emit("handshake", 0, 150, None)
    bench.emit("handshake", 0, 1, None, error=True)
    assert [(name, why) for name, _, why in bench.out] == [("handshake", "slow"), ("handshake", "failed")]
    assert bench.account == (2, 1, 0)


def test_a_hint_keeps_what_is_held_and_what_comes() -> None:
    bench = Bench()
    bench.emit("decode.admission", 0, 1)
    bench.sampler.handlers[events.KEEP]((events.KEEP, 0, "r"))
    bench.emit("decode", 0, 5)
    assert bench.out == [("decode.admission", "r", "hint"), ("decode", "r", "hint")]


def test_a_hint_before_the_first_span_counts_only_for_what_the_sampler_rejects() -> None:
    for taken, expected in ((False, ["hint"]), (True, [""])):
        bench = Bench()
        bench.sampler._decide = lambda *_, taken=taken: taken
        bench.sampler.keep("r", "hint")
        bench.emit("decode", 0, 5)
        assert [why for *_, why in bench.out] == expected


def test_memory_is_bounded_and_the_account_exact() -> None:
    bench = Bench(held_spans=50)
    for number in range(1000):
        bench.emit("decode.admission", 0, 1, str(number))
        assert bench.sampler.held <= 50
    assert bench.account == (0, 950, 50)
    assert bench.sampler.evicted == 950
    bench.sampler.close()
    assert bench.account == (0, 1000, 0)


def test_a_request_that_never_ends_is_decided_after_a_while() -> None:
    bench = Bench()
    bench.emit("decode.admission", 0, 1, "lost")
    bench.now = PATIENCE_S + 1
    bench.emit("decode.admission", 0, 1, "other")
    assert bench.account == (0, 1, 1)


def test_restart_forgets() -> None:
    bench = Bench()
    bench.emit("decode.admission", 0, 1)
    bench.sampler.restart()
    assert bench.account == (0, 0, 0)
    bench.emit("decode", 0, 5)
    assert bench.account == (0, 1, 0)


def request(request_id: str = "r", **params: Any) -> Any:
    status = SimpleNamespace(name="FINISHED_LENGTH_CAPPED")
    return SimpleNamespace(
        request_id=request_id, kv_transfer_params=params or None, num_prompt_tokens=8, num_computed_tokens=8,
        num_output_tokens=1, status=status, trace_headers=None,
    )  # fmt: skip


def test_only_sampling_engines_give_and_read_hints() -> None:
    kinds = {
        SchedulerLens: SamplingSettings(),
        HintReadingLens: SamplingSettings(sampler="traceidratio", ratio=0.5),
        HintGivingLens: SamplingSettings(sampler="traceidratio", ratio=0.5, keep_slow_ms=5.0),
    }
    for kind, settings in kinds.items():
        assert type(make_scheduler_lens(Recorder(), settings, consumes=False, outbox=deque())) is kind
        worker = make_worker_lens(Recorder(), settings, follows_peer=True)
        assert type(worker) is (WorkerLens if kind is SchedulerLens else VerdictReadingLens)


def test_a_slow_prefill_tells_the_decode_side() -> None:
    for slow_ms, hinted in ((0.0, True), (1e9, False)):
        recorder = Recorder()
        lens = HintGivingLens(recorder, consumes=False, outbox=deque(), slow_ms=slow_ms)
        answer: dict[str, Any] = {"do_remote_prefill": True}
        lens.arrived(request(do_remote_decode=True))
        lens.finished(request(do_remote_decode=True), [[1]], (True, answer))
        assert (HINT in answer) is hinted
        decode = Recorder()
        HintReadingLens(decode, consumes=True, outbox=deque()).arrived(request(**answer))
        assert any(event[0] == events.KEEP for event in decode.drain()) is hinted


def test_a_decode_or_plain_request_gets_no_hint() -> None:
    lens = HintGivingLens(Recorder(), consumes=True, outbox=deque(), slow_ms=0.0)
    for params in ({"do_remote_prefill": True}, {}):
        answer: dict[str, Any] = {}
        lens.arrived(request(**params))
        lens.finished(request(**params), [[1]], (False, answer))
        assert answer == {}
    lens.arrived(request(do_remote_decode=True))
    lens.finished(request(do_remote_decode=True), [[1]], (False, None))


def send_verdicts(scheduler: Bench, worker: Bench) -> None:
    """One engine step: the scheduler's verdicts travel on its metadata to a worker of another process."""
    metadata = SimpleNamespace(reqs_to_recv={})
    HintReadingLens(Recorder(), consumes=True, outbox=scheduler.sampler.outbox).attach(metadata)
    recorder = Recorder()
    VerdictReadingLens(recorder, follows_peer=True).loading(metadata)
    for event in recorder.drain():
        if event[0] in worker.sampler.handlers:
            worker.sampler.handlers[event[0]](event)


def test_a_worker_process_keeps_and_drops_what_its_scheduler_does() -> None:
    scheduler, worker = Bench(), Bench()
    for request_id in ("slow", "fast"):
        worker.emit("wire", 1, 2, request_id)
        worker.emit("completion", 2, 3, request_id)
    scheduler.emit("decode.first_step", 0, 150, "slow")
    scheduler.emit("decode.first_step", 0, 50, "fast")
    scheduler.emit("decode", 0, 60, "fast")
    assert worker.account == (0, 0, 4)
    send_verdicts(scheduler, worker)
    assert worker.account == (2, 2, 0)
    assert worker.out == [("wire", "slow", "slow"), ("completion", "slow", "slow")]
    worker.emit("notification", 9, 9, "slow")
    worker.emit("notification", 9, 9, "fast")
    assert worker.account == (3, 3, 0)


def test_verdicts_do_not_travel_in_circles() -> None:
    bench = Bench()
    bench.emit("decode.first_step", 0, 150)
    for _ in range(3):
        # Scheduler and worker in one process share the sampler.
        send_verdicts(bench, bench)
        assert not bench.sampler.outbox


def test_verdicts_that_nobody_takes_are_bounded() -> None:
    bench = Bench(limit=10)
    for number in range(100):
        bench.emit("decode", 0, 5, str(number))
    assert len(bench.sampler.outbox) == 10

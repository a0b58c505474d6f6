"""Step batches from injected events: columns, runs, folding, bounds, slow steps, thread samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import MS, Sink, make_factory

from instrumented_connectors import events, thread_samples
from instrumented_connectors.catalogue import STEP_BATCH, STEP_SLOW, THREADS_SAMPLE
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens
from instrumented_connectors.step_columns import MAX_ROWS, Columns, Members
from instrumented_connectors.step_records import StepRecords
from instrumented_connectors.step_slow import LEAST, SlowSteps, StepTimes
from instrumented_connectors.thread_samples import ThreadSampler, Usage, WriterWatch, read_usage
from instrumented_connectors.worker_lens import WorkerLens


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def records(sink: Sink) -> StepRecords:
    return StepRecords(make_factory(sink, "D0"), limit=100)


def feed(records: StepRecords, code: int, at: float, *rest: Any) -> None:
    records.handlers[code]((code, round(at * MS), *rest))


def run_step(
    records: StepRecords, step: int, begin: float, end: float, scheduled: dict[str, int], *,
    new: dict[str, int] | None = None, preempted: int = 0,
) -> None:  # fmt: skip
    added = [SimpleNamespace(req_id=name, num_computed_tokens=computed) for name, computed in (new or {}).items()]
    feed(records, events.STEP, begin, scheduled, added, step, 0, preempted)
    feed(records, events.STEP_END, end, round((begin + 0.1) * MS))


def run_worker(
    records: StepRecords, step: int, begin: float, end: float, *, tokens: int = 1, submit: float = 0
) -> None:
    mark = (step, tokens, min(tokens, 1), 0)
    load = end - 0.5 - submit
    feed(records, events.WORKER_STEP, end, mark, round(begin * MS), round(load * MS), round((load + submit) * MS), 0,
         round((end - 0.5) * MS), "MainThread")  # fmt: skip


def arrive(records: StepRecords, request_id: str, prompt: int) -> None:
    feed(records, events.ARRIVE, 0, request_id, prompt, False, True, "P0", "p", None)


def test_a_batch_holds_steps_and_who_was_in_them(records: StepRecords, sink: Sink) -> None:
    arrive(records, "a", 96)
    arrive(records, "b", 40)
    # a's prompt takes two chunks, b's was fetched but for one token.
    run_step(records, 1, 10, 20, {"a": 64}, new={"a": 0})
    run_step(records, 2, 21, 30, {"a": 32, "b": 1}, new={"b": 39})
    run_step(records, 3, 31, 35, {"a": 1, "b": 1})
    run_step(records, 4, 36, 40, {"a": 1, "b": 1})
    run_step(records, 5, 41, 45, {"b": 1}, preempted=1)
    records.close()
    (batch,) = sink.named(STEP_BATCH)
    assert (batch["start"], batch["end"]) == (10, 45)
    assert {name: batch[name] for name in batch if name not in ("name", "start", "end", "trace", "span")} == {
        "parent": None, "error": False, "links": [], "step_schema": 1, "side": "scheduler", "rows": 5, "first_step": 1,
        "request_ids": ("a", "b"), "steps": (1, 1, 1, 1, 1), "begin_ns": (0, 11 * MS, 10 * MS, 5 * MS, 5 * MS),
        "duration_ns": (10 * MS, 9 * MS, 4 * MS, 4 * MS, 4 * MS), "prompt_tokens": (64, 33, 0, 0, 0),
        "decode_tokens": (0, 0, 2, 2, 1), "requests": (1, 2, 2, 2, 1), "preempted": (0, 0, 0, 0, 1),
        "build_ns": (MS // 10,) * 5, "run_request": (0, 1, 0, 1), "run_kind": (0, 0, 1, 1), "run_first": (0, 1, 2, 2),
        "run_rows": (2, 1, 2, 3),
    }  # fmt: skip


def test_idle_steps_share_a_row(records: StepRecords, sink: Sink) -> None:
    for step in range(1, 101):
        run_step(records, step, step, step + 0.5, {})
        run_worker(records, step, step, step + 0.6, tokens=0)
    arrive(records, "a", 4)
    run_step(records, 101, 200, 210, {"a": 4}, new={"a": 0})
    records.close()
    scheduler, worker = sink.named(STEP_BATCH)
    assert scheduler["steps"] == (100, 1)
    assert scheduler["duration_ns"] == (int(99.5 * MS), 10 * MS)
    assert worker["steps"] == (100,)
    assert worker["poll_ns"] == (50 * MS,)


def test_batches_are_bounded_in_rows_and_in_time(records: StepRecords, sink: Sink) -> None:
    arrive(records, "a", 1)
    for step in range(1, MAX_ROWS + 10):
        run_step(records, step, step, step + 0.5, {"a": 1}, new={"a": 0} if step == 1 else None)
    assert [batch["rows"] for batch in sink.named(STEP_BATCH)] == [MAX_ROWS]
    records.tick(round((MAX_ROWS + 500) * MS))
    assert len(sink.named(STEP_BATCH)) == 1
    records.tick(round((MAX_ROWS + 1002) * MS))
    second = sink.named(STEP_BATCH)[1]
    # Who decodes is said anew in each batch.
    assert (second["first_step"], second["request_ids"], second["run_rows"]) == (MAX_ROWS + 1, ("a",), (9,))


def test_a_lost_event_ends_the_batch(records: StepRecords, sink: Sink) -> None:
    for step in (1, 2, 4):
        run_step(records, step, step, step + 0.5, {"a": 1})
    records.close()
    assert [(b["first_step"], b["rows"]) for b in sink.named(STEP_BATCH)] == [(1, 2), (4, 1)]


def test_forgets_what_ended(records: StepRecords) -> None:
    for number in range(5000):
        name = f"r{number}"
        arrive(records, name, 64)
        run_step(records, number + 1, number, number + 0.5, {name: 8}, new={name: 0})
        feed(records, events.FINISH, number + 0.7, name, "aborted", 8, 0, 1, False)
    scheduler = records._scheduler
    assert len(scheduler._remaining) + len(scheduler._prompts) + len(scheduler._built) + len(scheduler._finished) < 10


def test_the_lenses_agree_on_the_step(sink: Sink, records: StepRecords) -> None:
    recorder = Recorder(100)
    scheduler, worker = SchedulerLens(recorder, consumes=True), WorkerLens(recorder, follows_peer=True)
    for scheduled in ({}, {"a": 1}, {"a": 1, "b": 1}):
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled, scheduled_new_reqs=[], total_num_scheduled_tokens=len(scheduled),
            preempted_req_ids=None,
        )  # fmt: skip
        metadata = SimpleNamespace(reqs_to_recv={}, push_finished_blocks={})
        scheduler.scheduled(output)
        scheduler.attach(metadata)
        worker.begun()
        worker.loading(metadata)
        worker.loaded()
        worker.saving()
        worker.saved()
        worker.polling()
        worker.reported(None, None, None)
        scheduler.step_ended()
    for event in recorder.drain():
        records.handlers[event[0]](event)
    records.close()
    steps = {batch["side"]: (batch["first_step"], batch["rows"]) for batch in sink.named(STEP_BATCH)}
    assert steps == {"scheduler": (1, 3), "worker": (1, 3)}


def test_a_slow_step_gets_a_span_with_its_cause(records: StepRecords, sink: Sink) -> None:
    at = 0.0
    for step in range(1, LEAST + 20):
        slow = step in (LEAST + 5, LEAST + 9)
        submit = 80.0 if slow else 0.0
        run_worker(records, step, at, at + 20 + submit, submit=submit)
        at += 21 + submit
    spans = sink.named(STEP_SLOW)
    assert [(span["step"], span["cause"], span["submit_ns"]) for span in spans] == [
        (LEAST + 5, "post", 80 * MS), (LEAST + 9, "post", 80 * MS),
    ]  # fmt: skip
    assert spans[0]["end"] - spans[0]["start"] == pytest.approx(101, abs=0.01)


@pytest.mark.parametrize("part", ["post", "poll", "save", "execution", "gap"])
def test_the_cause_is_the_part_that_grew(part: str) -> None:
    usual = {"post": 0, "poll": 1, "save": 0, "execution": 20, "gap": 2}
    slow = SlowSteps()
    for _ in range(LEAST):
        assert slow.judge(StepTimes(**{k: v * MS for k, v in usual.items()}), pure=True, preempted=0) == ""
    grown = StepTimes(**{k: v * MS for k, v in {**usual, part: 60}.items()})
    assert slow.judge(grown, pure=True, preempted=0) == part
    assert slow.judge(grown, pure=True, preempted=1) == ("preemption" if part in ("execution", "gap") else part)


def test_slow_spans_are_limited() -> None:
    slow = SlowSteps()
    times = StepTimes(0, 0, 0, 10 * MS, 0)
    for _ in range(LEAST):
        slow.judge(times, pure=True, preempted=0)
    found = [slow.judge(StepTimes(0, 0, 0, 90 * MS, 0), pure=False, preempted=0) for _ in range(60)]
    assert found.count("execution") == 10
    assert slow.suppressed == 50


def test_columns_of_zeros_are_left_out() -> None:
    columns = Columns(7, 100)
    columns.add(7, 100, 130, idle=False, poll_ns=0, submit_ns=4)
    assert columns.freeze() == {"steps": (1,), "duration_ns": (30,), "submit_ns": (4,)}
    members = Members()
    members.set_row(0, {"x": 1})
    assert members.freeze(1) == (("x",), {"run_request": (0,), "run_kind": (1,), "run_first": (0,), "run_rows": (1,)})


# -- threads ---------------------------------------------------------------------------------------------------


def write_task(folder: Path, thread_id: int, cpu_ns: int, wait_ns: int, comm: str) -> None:
    task = folder / str(thread_id)
    task.mkdir(exist_ok=True)
    (task / "schedstat").write_text(f"{cpu_ns} {wait_ns} 5\n")
    (task / "comm").write_text(comm + "\n")
    (task / "stat").write_text(f"{thread_id} (a) b) R " + " ".join(["0"] * 10) + " 7 3 0 0\n")


def test_threads_are_sampled_by_name(sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = [SimpleNamespace(native_id=1, name="MainThread"), SimpleNamespace(native_id=2, name="kvlens-assembler")]
    monkeypatch.setattr(thread_samples.threading, "enumerate", lambda: python)
    write_task(tmp_path, 1, 0, 0, "python")
    write_task(tmp_path, 2, 0, 0, "python")
    sampler = ThreadSampler(make_factory(sink, "D0"), lambda: sampler_steps[0], tasks=tmp_path)
    sampler_steps = [1]
    before = thread_samples.list_thread_ids(tmp_path)
    write_task(tmp_path, 3, 0, 0, "ucx")
    sampler.watch_worker(SimpleNamespace(), before)
    second = 1000 * MS
    sampler.tick(second)
    write_task(tmp_path, 1, 700 * MS, 100 * MS, "python")
    write_task(tmp_path, 3, 200 * MS, 0, "ucx")
    sampler_steps[0] = 2
    sampler.tick(second + second // 2)  # too early
    sampler.tick(2 * second)
    sampler.tick(3 * second)  # no steps since: idle
    (sample,) = sink.named(THREADS_SAMPLE)
    figures = {name: sample[name] for name in ("names", "kinds", "threads", "cpu_ns", "wait_ns", "source")}
    assert figures == {
        "names": ("MainThread", "ucx"), "kinds": ("engine", "nixl"), "threads": (1, 1), "cpu_ns": (700 * MS, 200 * MS),
        "wait_ns": (100 * MS, 0), "source": "schedstat",
    }  # fmt: skip


def test_usage_falls_back_to_clock_ticks(tmp_path: Path) -> None:
    write_task(tmp_path, 1, 0, 0, "x")
    (tmp_path / "1" / "schedstat").unlink()
    usage = read_usage(tmp_path, 1)
    assert usage is not None
    assert usage.wait_ns is None
    assert usage.cpu_ns > 0
    assert read_usage(tmp_path, 2) is None
    assert read_usage(thread_samples.TASKS, thread_samples.threading.get_native_id()) not in (None, Usage(0, 0))


class Queue:
    def __init__(self, *items: Any) -> None:
        self.queue = list(items)

    def qsize(self) -> int:
        return len(self.queue)


def test_the_push_writer_is_read_and_not_changed() -> None:
    notes = {"agent": [b"x"]}
    worker = SimpleNamespace(
        nixl_wrapper=SimpleNamespace(get_new_notifs=lambda: notes), _push_writer_thread=None,
        _reg_send_inbox=Queue(("r2", {})), _finished_blocks_inbox=Queue(), _push_finished_blocks={"r1": ()},
        _pending_d_registrations={}, _pending_completion_notifs=Queue(b"", b""),
    )  # fmt: skip
    now = [100]
    watch = WriterWatch(worker, clock=lambda: now[0])
    watch.on_load((events.LOAD, 40, [("r2", None, None, True)], ("r1",), None, False))
    now[0] = 150
    assert worker.nixl_wrapper.get_new_notifs() is notes
    now[0] = 190
    assert watch.read() == {
        "writer_queue": 1, "writer_unmatched": 1, "writer_registrations": 0, "writer_forwarded": 2,
        "writer_oldest_ns": 150, "writer_heartbeat_ns": 40,
    }  # fmt: skip
    # Another vLLM without these attributes: the figures are missing, nothing else.
    bare = WriterWatch(SimpleNamespace(nixl_wrapper=SimpleNamespace(get_new_notifs=dict)), clock=lambda: 5)
    assert bare.read() == {"writer_queue": 0, "writer_oldest_ns": 0, "writer_heartbeat_ns": 0}

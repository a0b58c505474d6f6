"""A later turn on the prefill engine: it reads blocks back from D, computes the rest, and lends its own blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from helpers import MS, Sink, feed, make_scheduler, make_transfers
from metric_processes import Process, cross, make_output, values

from instrumented_connectors.events import (
    ALLOC,
    ARRIVE,
    DONE,
    FINISH,
    LOAD,
    MATCH,
    NOTIFIED,
    POSTED,
    PREP,
    RESULTS,
    STEP,
    STEP_END,
    TELEMETRY,
    TOLD,
)  # fmt: skip
from instrumented_connectors.identity import derive_span_id, derive_trace_id
from instrumented_connectors.metrics.stats import take_payloads
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.worker_lens import WorkerLens

P_ID, EARLIER = "cmpl-turn2-0-aaaaaaaa", "cmpl-turn1-0-bbbbbbbb"
LENGTH = "finished_length_capped"
NONE: frozenset[str] = frozenset()


def on_scheduler(failed: frozenset[str] = NONE) -> list[tuple[Any, ...]]:
    return [
        (ARRIVE, 0, P_ID, 300, True, False, "D0", EARLIER, None),
        (MATCH, 1, P_ID, 0, 256),
        (ALLOC, 2, P_ID, 256, 8),
        (TOLD, 20, (P_ID,), (), failed),
        (MATCH, 21, P_ID, 0, 256),
        (ALLOC, 22, P_ID, 0, 10),
        (STEP, 23, {P_ID: 44}, [SimpleNamespace(req_id=P_ID, num_computed_tokens=256)]),
        (FINISH, 40, P_ID, LENGTH, 300, 1, 10, True),
        (STEP_END, 41),
    ]


def on_worker() -> list[tuple[Any, ...]]:
    return [
        (LOAD, 3, [(P_ID, "D0", EARLIER, True)], (), None, False),
        (PREP, 4, 5 * MS, 7, "READ", 8, f"{EARLIER}:1".encode(), None, "MainThread", True),
        (POSTED, 5, 6 * MS, 7, "MainThread", True),
        (DONE, 18, 7, 12 * MS, 3, "DONE"),
        (TELEMETRY, 18, 7, 900, 9000, 4096, 8),
        (RESULTS, 19, (P_ID,), (), NONE),
    ]


def test_the_remote_wait_of_a_prefill_has_a_span_in_its_own_trace() -> None:
    sink = Sink()
    feed(make_scheduler(sink, "P0"), *on_scheduler())
    assert sink.phases() == [
        ("lease", 2, 20), ("prefill.remote_wait", 2, 20), ("prefill.queue", 0, 23), ("prefill.compute", 23, 40),
        ("prefill", 0, 40),
    ]  # fmt: skip
    wait, root = sink.named("prefill.remote_wait")[0], sink.named("prefill")[0]
    assert (wait["outcome"], wait["blocks"], wait["external_tokens"], wait["error"]) == ("ok", 8, 256, False)
    assert (wait["trace"], wait["parent"]) == (derive_trace_id("turn2"), root["span"])
    # The earlier turn is another trace.
    assert root["links"] == [(derive_trace_id("turn1"), derive_span_id("D0", EARLIER))]


def test_a_failed_fetch_is_an_error() -> None:
    sink = Sink()
    feed(make_scheduler(sink, "P0"), *on_scheduler(frozenset({P_ID})))
    wait = sink.named("prefill.remote_wait")[0]
    assert (wait["outcome"], wait["error"]) == ("failed", True)


def test_a_request_that_is_stuck_in_its_readback_says_so_when_it_ends() -> None:
    """Nothing else that it sends tells it from one that waits in the queue."""
    sink = Sink()
    feed(make_scheduler(sink, "P0"), *on_scheduler()[:3], (FINISH, 9000, P_ID, "finished_aborted", 0, 0, 8, False))
    (wait,), (root,) = sink.named("prefill.remote_wait"), sink.named("prefill")
    assert (wait["start"], wait["end"], wait["outcome"], wait["error"]) == (2, 9000, "aborted", False)
    assert root["finish_reason"] == "finished_aborted"
    # An engine that is stopped meanwhile says it in the request's place, once.
    sink = Sink()
    scheduler = make_scheduler(sink, "P0")
    feed(scheduler, *on_scheduler()[:3])
    scheduler.close(9000 * MS)
    scheduler.close(9001 * MS)
    (wait,), (root,) = sink.named("prefill.remote_wait"), sink.named("prefill")
    assert (wait["end"], wait["outcome"]) == (9000, "unknown")
    assert (root["end"], root["finish_reason"]) == (9000, "unknown")
    assert wait["parent"] == root["span"]


def test_the_transfer_belongs_to_the_later_turn_and_names_the_earlier_one() -> None:
    sink = Sink()
    feed(make_transfers(sink, "P0"), *on_worker())
    assert sink.phases() == [("post", 4, 6), ("wire", 6, 18), ("completion", 18, 19)]
    assert {span["trace"] for span in sink.spans} == {derive_trace_id("turn2")}
    assert {span["parent"] for span in sink.spans} == {derive_span_id("P0", P_ID)}
    for span in (sink.named("post")[0], sink.named("wire")[0]):
        assert (span["direction"], span["peer_engine_id"], span["peer_request_id"]) == ("READ", "D0", EARLIER)


def test_a_request_that_only_sends_a_message_is_not_expected_back() -> None:
    """P holds all of it: D is told to let go, nothing is received, and D reads P's blocks later as always."""
    sink = Sink()
    transfers = make_transfers(sink, "P0")
    feed(
        transfers,
        (LOAD, 3, [(P_ID, "D0", EARLIER, False)], (), None, False),
        (NOTIFIED, 60, [f"{P_ID}:1".encode()], "MainThread"),
        (RESULTS, 61, (), (P_ID,), NONE),
    )
    assert transfers._causes == {P_ID: ("read", 0, 0)}


def test_the_lens_says_what_is_awaited() -> None:
    recorder = Recorder(10)
    remote = SimpleNamespace(engine_id="D0", request_id=EARLIER)

    def load(**meta: Any) -> bool:
        metadata = SimpleNamespace(reqs_to_recv={P_ID: SimpleNamespace(remote=remote, **meta)})
        WorkerLens(recorder, follows_peer=False).loading(metadata)
        (event,) = recorder.drain()
        assert event[2][0][:3] == (P_ID, "D0", EARLIER)
        return bool(event[2][0][3])

    assert load(awaiting_kvs=True, local_block_ids=([1],))
    assert load(awaiting_kvs=False, local_block_ids=([1],)), "a push decoder: blocks, but not parked for a read"
    assert not load(awaiting_kvs=False, local_block_ids=())
    assert load(local_block_ids=()), "a vLLM that doesn't say"


def test_facts_of_a_receive_and_of_a_lease_do_not_replace_each_other() -> None:
    """Both may be reported within one delivery: a short prompt is read back, computed and read by D in a second."""
    worker, scheduler = Process("prefill", "bidirectional", scheduler=False), None
    worker.feed(*on_worker(), (NOTIFIED, 60, [f"{P_ID}:1".encode()], "t"), (RESULTS, 61, (), (P_ID,), NONE))
    stats = cross(worker.deliver())
    scheduler = Process("prefill", "bidirectional", scheduler=True)
    scheduler.feed(*on_scheduler(), (TOLD, 62, (), (P_ID,), NONE))
    scheduler.port.told(make_output(stats))
    scheduler.drain()
    assert [span["outcome"] for span in scheduler.sink.named("lease")] == ["received", "read"]
    assert not scheduler.collector.facts._waiting
    assert not scheduler.collector.facts._facts
    # The receive's own facts say how much of its wait was on the wire.
    seconds = values(take_payloads(scheduler.deliver()), "handover_seconds_total")
    assert (seconds["bidirectional", "transfer"], seconds["bidirectional", "coordination"]) == (0.012, 0.006)

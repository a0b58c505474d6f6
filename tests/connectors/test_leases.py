"""The lease ledger: why blocks are held, from when to when, how that ended; and what a request had while it ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from helpers import ANCHOR, MS, Sink, build_scheduler, feed, make_factory, make_transfers
from metric_processes import Process, cross, make_output

from instrumented_connectors.events import ALLOC, ARRIVE, FINISH, NOTIFIED, RESULTS, STEP, STEP_END, TOLD
from instrumented_connectors.leases import Terms
from instrumented_connectors.metrics.facts import Cause
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.request_state import BlockUsage
from instrumented_connectors.scheduler_lens import SchedulerLens
from instrumented_connectors.scheduler_spans import SchedulerSpans
from instrumented_connectors.stock import read_terms

P_ID, D_ID = "cmpl-r-0-aaaaaaaa", "cmpl-r-0-bbbbbbbb"
LENGTH, ABORTED = "finished_length_capped", "finished_aborted"
NONE: frozenset[str] = frozenset()
TERMS = Terms(block_size=32, block_bytes=4096, lease_ns=30_000 * MS, retention_ns=480_000 * MS)


def make(sink: Sink, engine_id: str, mode: str = "pull", **more: Any) -> SchedulerSpans:
    scheduler = build_scheduler(make_factory(sink, engine_id), mode=mode, **more)
    scheduler._leases.terms = TERMS
    return scheduler


def step(
    at: float, scheduled: dict[str, int], new: dict[str, int] | None = None, **growth: list[int]
) -> tuple[Any, ...]:
    """A step, and the blocks that it gives to running requests."""
    news = [SimpleNamespace(req_id=name, num_computed_tokens=computed) for name, computed in (new or {}).items()]
    ids = [name for name in scheduled if name not in (new or {})]
    blocks = [([*growth["blocks"]],) if growth.get("blocks") else None for _ in ids]
    return (STEP, at, scheduled, news, 1, 0, 0, (), (ids, set(), blocks))


def on_d(request_id: str = D_ID) -> list[tuple[Any, ...]]:
    """Reserved at 5, here at 25, a block more at 35, done at 45 with 6 blocks kept."""
    return [
        (ARRIVE, 0, request_id, 100, False, True, "P0", P_ID, None),
        (ALLOC, 5, request_id, 100, 4),
        (TOLD, 25, (request_id,), (), NONE),
        (ALLOC, 26, request_id, 0, 5),
        step(26, {request_id: 1}, {request_id: 99}),
        (STEP_END, 34),
        step(35, {request_id: 1}, blocks=[9]),
        (FINISH, 45, request_id, LENGTH, 101, 2, 5, True),
        (STEP_END, 46),
    ]


def test_a_decoders_blocks_from_the_reservation_to_the_next_turn() -> None:
    sink, causes = Sink(), {D_ID: Cause("read")}
    scheduler = make(sink, "D0", causes=causes)
    feed(scheduler, *on_d(), (TOLD, 95, (), (D_ID,), NONE))
    reserved, kept = sink.named("lease")
    root = sink.named("decode")[0]
    common = {"name": "lease", "trace": root["trace"], "parent": root["span"], "error": False, "links": []}
    assert reserved == common | {
        "span": reserved["span"], "start": 5, "end": 25, "reason": "reserved_awaiting_read", "blocks": 4,
        "bytes": 4 * 4096, "outcome": "received",
    }  # fmt: skip
    assert kept == common | {
        "span": kept["span"], "start": 45, "end": 95, "reason": "awaiting_next_turn", "blocks": 6, "bytes": 6 * 4096,
        "ttl_ns": TERMS.retention_ns, "outcome": "read",
    }  # fmt: skip
    # 1 ms x 4, 9 ms x 5, 10 ms x 6: the waits are leases.
    assert (root["block_ns"], root["blocks_peak"], root["block_size"]) == (109 * MS, 6, 32)


def test_every_block_that_was_taken_is_in_the_ledger_once() -> None:
    """Blocks x time of leases and running requests together are what the cache gave out."""
    sink = Sink()
    scheduler = make(sink, "D0", causes={D_ID: Cause("read")})
    feed(scheduler, *on_d(), (TOLD, 95, (), (D_ID,), NONE))
    leased = sum(lease["blocks"] * (lease["end"] - lease["start"]) for lease in sink.named("lease"))
    held = 4 * (26 - 5) + 5 * (35 - 26) + 6 * (95 - 35)
    assert leased + sink.named("decode")[0]["block_ns"] / MS == held
    assert not scheduler._leases._open


def test_in_push_a_decoder_commits_early() -> None:
    sink = Sink()
    feed(make(sink, "D0", "push"), *on_d()[:3])
    (lease,) = sink.named("lease")
    assert (lease["reason"], lease["start"], lease["end"], lease["outcome"]) == (
        "reserved_awaiting_write", 5, 25, "received",
    )  # fmt: skip


def test_p_keeps_its_blocks_until_d_has_read_them() -> None:
    sink, seen = Sink(), ANCHOR + 60 * MS
    scheduler = make(sink, "P0", causes={P_ID: Cause("read", 2, seen)})
    feed(
        scheduler,
        (ARRIVE, 0, P_ID, 300, True, False, None, None, None),
        (ALLOC, 1, P_ID, 0, 4),
        step(2, {P_ID: 128}, {P_ID: 0}),
        (STEP_END, 10),
        step(11, {P_ID: 172}, blocks=[5, 6, 7, 8, 9, 10]),
        (FINISH, 20, P_ID, LENGTH, 300, 1, 10, True),
        (STEP_END, 21),
        (TOLD, 70, (), (P_ID,), NONE),
    )
    (lease,) = sink.named("lease")
    assert (lease["reason"], lease["blocks"], lease["ttl_ns"]) == ("finished_awaiting_transfer", 10, TERMS.lease_ns)
    assert (lease["outcome"], lease["heartbeats"], lease["last_heartbeat_ns"]) == ("read", 2, seen)
    root = sink.named("prefill")[0]
    assert (root["block_ns"], root["blocks_peak"], root["blocks_kept"]) == ((10 * 4 + 9 * 10) * MS, 10, 10)


@pytest.mark.parametrize(("reason", "is_error"), [("finished_awaiting_transfer", True), ("awaiting_next_turn", False)])
def test_an_expired_lease_is_an_error_but_no_next_turn_is_none(reason: str, is_error: bool) -> None:
    sink = Sink()
    ledger = make(sink, "E", causes={"r": Cause("expired")})._leases
    ledger.open("r", reason, 0, 3)
    ledger.release("r", 9 * MS)
    (lease,) = sink.named("lease")
    assert (lease["outcome"], lease["error"]) == ("expired", is_error)


def test_an_aborted_request_holds_its_blocks_until_the_receive_is_over() -> None:
    sink = Sink()
    scheduler = make(sink, "D0")
    feed(scheduler, *on_d()[:2], (FINISH, 15, D_ID, ABORTED, 0, 0, 4, False))
    assert [(lease["reason"], lease["outcome"]) for lease in sink.named("lease")] == [
        ("reserved_awaiting_read", "aborted"),
    ]  # fmt: skip
    feed(scheduler, (TOLD, 40, (D_ID,), (), NONE))
    lease = sink.named("lease")[1]
    assert (lease["reason"], lease["start"], lease["end"], lease["blocks"], lease["outcome"]) == (
        "aborted_awaiting_receive", 15, 40, 4, "received",
    )  # fmt: skip
    root = sink.named("decode")[0]
    assert (root["block_ns"], root["blocks_kept"]) == (0, 4)


def test_a_failed_receive_gives_the_blocks_back() -> None:
    sink = Sink()
    feed(make(sink, "D0"), *on_d()[:2], (TOLD, 25, (D_ID,), (), frozenset({D_ID})))
    assert sink.named("lease")[0]["outcome"] == "released"


@pytest.mark.parametrize("told", [(D_ID,), ()], ids=["preemption told", "seen when it is resumed"])
def test_preempted_and_resumed_requests_lose_and_get_blocks(told: tuple[str, ...]) -> None:
    sink = Sink()
    scheduler = make(sink, "D0")
    feed(scheduler, *on_d()[:6])
    feed(
        scheduler,
        (STEP, 40, {}, [], 2, 0, 1, told, None),
        (STEP, 60, {D_ID: 101}, [], 3, 0, 0, (), ([D_ID], {D_ID}, [([1, 2, 3, 4],)])),
        (FINISH, 70, D_ID, LENGTH, 101, 2, 4, False),
    )
    feed(scheduler, (STEP_END, 70), (STEP_END, 70))
    # 1 x 4 + 14 x 5, nothing (or the 5 of before) for 20 ms, 10 x 4.
    assert sink.named("decode")[0]["block_ns"] == (4 + 70 + (0 if told else 100) + 40) * MS


def test_close_ends_everything_and_the_ledger_is_bounded() -> None:
    sink = Sink()
    scheduler = make(sink, "D0", limit=3)
    for number in range(5):
        scheduler._leases.open(f"r{number}", "awaiting_next_turn", 0, 1)
    assert scheduler._leases.evicted == 2
    scheduler.close(7 * MS)
    assert [(lease["outcome"], lease["end"]) for lease in sink.named("lease")] == [("unknown", 7)] * 3
    scheduler.close(8 * MS)
    assert len(sink.named("lease")) == 3


def test_heartbeats_reach_the_scheduler_with_their_time() -> None:
    worker = Process("prefill", "pull", scheduler=False)
    worker.feed(
        (NOTIFIED, 20, [f"HB:{P_ID},other".encode()], "t"), (NOTIFIED, 30, [f"HB:{P_ID}".encode()], "t"),
        (NOTIFIED, 60, [f"{P_ID}:1".encode()], "t"), (RESULTS, 61, (), (P_ID,), NONE),
    )  # fmt: skip
    scheduler = Process("prefill", "pull", scheduler=True)
    scheduler.feed(
        (ARRIVE, 0, P_ID, 8, True, False, None, None, None), (ALLOC, 1, P_ID, 0, 1),
        (FINISH, 2, P_ID, LENGTH, 8, 1, 1, True), (TOLD, 62, (), (P_ID,), NONE),
    )  # fmt: skip
    scheduler.port.told(make_output(cross(worker.deliver())))
    scheduler.drain()
    (lease,) = scheduler.sink.named("lease")
    assert (lease["outcome"], lease["heartbeats"], lease["last_heartbeat_ns"]) == ("read", 2, ANCHOR + 30 * MS)


def test_in_one_process_the_cause_needs_no_message() -> None:
    transfers = make_transfers(Sink(), "P0")
    feed(transfers, (NOTIFIED, 20, [f"HB:{P_ID}".encode()], "t"), (RESULTS, 61, (), (P_ID,), NONE))
    assert transfers._causes == {P_ID: ("expired", 1, ANCHOR + 20 * MS)}


def test_block_usage_counts_only_while_it_runs() -> None:
    usage = BlockUsage()
    usage.hold(0, 5)
    usage.run(10)
    usage.run(12)
    usage.hold(20, 6)
    usage.stop(30)
    usage.hold(40, 9)
    assert (usage.block_ns, usage.peak) == (10 * 5 + 10 * 6, 9)


def test_the_lens_says_which_blocks_running_requests_get() -> None:
    recorder = Recorder(10)
    lens = SchedulerLens(recorder, consumes=True)
    running = SimpleNamespace(req_ids=["a"], resumed_req_ids=set(), new_block_ids=[([4],)])
    idle = SimpleNamespace(req_ids=[], resumed_req_ids=set(), new_block_ids=[])
    output = SimpleNamespace(
        num_scheduled_tokens={"a": 1}, scheduled_new_reqs=[], scheduled_cached_reqs=running, preempted_req_ids={"b"}
    )
    lens.scheduled(output)
    output.scheduled_cached_reqs, output.preempted_req_ids = idle, None
    lens.scheduled(output)
    first, second = recorder.drain()
    assert first[6:] == (1, ("b",), (["a"], set(), [([4],)]))
    assert second[6:] == (0, (), None)


def test_the_terms_come_from_the_engines_configuration() -> None:
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(get_from_extra_config={"kv_lease_duration": 12}.get),
        cache_config=SimpleNamespace(block_size=32), parallel_config=SimpleNamespace(tensor_parallel_size=2),
    )  # fmt: skip
    cache = SimpleNamespace(num_blocks=10, kv_cache_tensors=[SimpleNamespace(size=1000), SimpleNamespace(size=600)])
    assert read_terms(config, cache) == Terms(32, 320, 12_000 * MS, 480_000 * MS)
    assert read_terms(SimpleNamespace(kv_transfer_config=config.kv_transfer_config), None) == Terms(
        None, None, 12_000 * MS, 480_000 * MS
    )

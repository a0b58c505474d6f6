"""What the collector makes of events and spans, and how it travels from worker to scheduler to front end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from helpers import MS
from metric_processes import Process, cross, make_output, values

from instrumented_connectors import events
from instrumented_connectors.metrics import catalogue as table
from instrumented_connectors.metrics.stats import KEY, TransferStats, extend_stats, take_payloads
from instrumented_connectors.metrics.window import LabelBounds, Window, merge, read_payload

P_ID, D_ID = "cmpl-a-0-0123abcd", "cmpl-a-0-4567cdef"
THREAD = "t"


def registration() -> bytes:
    return b"PUSH_REG:" + msgspec.msgpack.encode({"request_id": D_ID, "decode_engine_id": "D0"})


def push_on_worker() -> list[tuple[Any, ...]]:
    """Blocks ready at 100 ms, registration 20 ms later, post at 125, wire 140-240, reported at 250."""
    return [
        (events.LOAD, 100, [], [P_ID], None, False),
        (events.NOTIFIED, 120, [registration()], THREAD),
        (events.PREP, 125, 130_000_000, 7, "WRITE", 64, f"{D_ID}:1".encode(), P_ID, THREAD, True),
        (events.POSTED, 130, 140_000_000, 7, THREAD, True),
        (events.DONE, 240, 7, 200_000_000, 3, "DONE"),
        (events.TELEMETRY, 241, 7, 10, 90_000, 1 << 20, 64),
        (events.RESULTS, 250, (), (P_ID,), frozenset()),
    ]


def read_on_worker(request_id: str = D_ID, handle: int = 9, at: int = 0) -> list[tuple[Any, ...]]:
    """Loaded at 100 ms, post at 110, wire 120-180, reported at 200; all of it `at` ms later."""
    return [
        (events.LOAD, at + 100, [(request_id, "P0", P_ID, True)], [], None, True),
        (events.PREP, at + 110, (at + 112) * MS, handle, "READ", 10, f"{P_ID}:1".encode(), request_id, THREAD, True),
        (events.POSTED, at + 112, (at + 120) * MS, handle, THREAD, True),
        (events.DONE, at + 180, handle, 0, 1, "DONE"),
        (events.TELEMETRY, at + 181, handle, 10, 60_000, 40960, 10),
        (events.RESULTS, at + 200, (request_id,), (), frozenset()),
    ]


def finish_on_p(status: str = "finished_length_capped") -> list[tuple[Any, ...]]:
    return [
        (events.ARRIVE, 0, P_ID, 100, True, False, None, None, None),
        (events.FINISH, 90, P_ID, status, 100, 1, 4, True),
    ]


def test_a_push_on_the_prefill_worker() -> None:
    worker = Process("prefill", "push", scheduler=False)
    worker.feed(*push_on_worker())
    payloads = take_payloads(worker.deliver())
    assert values(payloads, "segment_seconds") == {
        ("push", "pairing"): (1, 0.02),
        ("push", "dispatch"): (1, 0.005),
        ("push", "post"): (1, 0.015),
        ("push", "wire"): (1, 0.1),
    }
    route = ("WRITE", "UCX", "D0")
    assert values(payloads, "transferred_bytes_total") == {route: 1 << 20}
    assert values(payloads, "transfer_seconds_total") == {route: 0.1}
    assert values(payloads, "transfer_uncertain_seconds_total") == {route: 0.04}
    assert values(payloads, "transfers_total") == {(*route, "ok"): 1}
    assert values(payloads, "transfer_descriptors") == {("WRITE",): (1, 64)}
    assert values(payloads, "transfer_descriptor_bytes") == {("WRITE",): (1, 16384)}
    assert values(payloads, "pairing_lateness_seconds") == {("decode",): (1, 0.02)}
    assert values(payloads, "pairings_total") == {("paired",): 1}
    assert values(payloads, "push_waiting_requests") == {("blocks", "0"): 0, ("registrations", "0"): 0}


def test_what_waits_at_the_push_writer() -> None:
    worker = Process("prefill", "push", scheduler=False)
    worker.feed((events.LOAD, 100, [], [P_ID], None, False))
    payloads = take_payloads(worker.deliver(3000))
    assert values(payloads, "push_waiting_requests")["blocks", "0"] == 1
    assert values(payloads, "push_oldest_waiting_seconds")["blocks", "0"] == 3
    worker.feed((events.RESULTS, 4000, (), (P_ID,), frozenset()))
    payloads = take_payloads(worker.deliver())
    assert values(payloads, "push_waiting_requests")["blocks", "0"] == 0
    assert values(payloads, "pairings_total") == {("unpaired",): 1}


def test_a_remote_wait_is_split_by_the_slowest_rank() -> None:
    scheduler = Process("decode", "pull", scheduler=True, ranks=2)
    ranks = [Process("decode", "pull", scheduler=False, rank=rank) for rank in range(2)]
    scheduler.feed(
        (events.ARRIVE, 50, D_ID, 100, False, True, "P0", P_ID, None),
        (events.ALLOC, 80, D_ID, 99, 4),
    )
    assert values(take_payloads(scheduler.deliver(1500)), "held_blocks")["awaiting_arrival",] == 4
    ranks[0].feed(*read_on_worker())
    late = {events.DONE, events.TELEMETRY, events.RESULTS}
    ranks[1].feed(*((code, at + 30 * (code in late), *rest) for code, at, *rest in read_on_worker()))
    scheduler.feed((events.TOLD, 280, (D_ID,), (), frozenset()))
    for rank in ranks:
        scheduler.port.told(make_output(cross(rank.deliver())))
    payloads = take_payloads(scheduler.deliver())
    seconds = values(payloads, "handover_seconds_total")
    # 200 ms from allocation to told; the slower rank was 90 ms on the wire.
    assert seconds["pull", "transfer"] == 0.09
    assert seconds["pull", "coordination"] == 0.11
    assert values(payloads, "held_blocks")["awaiting_arrival",] == 0


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("status", "failed", "outcome"),
    [("finished_error", True, "failed"), ("finished_aborted", True, "failed"), ("finished_aborted", False, "ok")],
)
def test_a_load_whose_request_ends_first_counts_once(role: str, status: str, failed: bool, outcome: str) -> None:
    """By policy the request fails before its load is told; a client may give up long before."""
    process = Process(role, "bidirectional", scheduler=True)
    process.feed(
        (events.ARRIVE, 0, D_ID, 300, role == "prefill", role == "decode", "P0", P_ID, None),
        (events.MATCH, 1, D_ID, 0, 256),
        (events.ALLOC, 2, D_ID, 256, 8),
        (events.FINISH, 20, D_ID, status, 0, 0, 8, False),
        (events.TOLD, 30, (D_ID,), (), frozenset({D_ID} if failed else ())),
    )
    payloads = take_payloads(process.deliver())
    assert values(payloads, "remote_loads_total") == {(outcome,): 1}
    assert values(payloads, "requests_total") == {(role, status): 1}


def test_without_the_workers_word_a_remote_wait_is_unattributed() -> None:
    scheduler = Process("decode", "pull", scheduler=True)
    scheduler.feed((events.ALLOC, 80, D_ID, 99, 4), (events.TOLD, 280, (D_ID,), (), frozenset()))
    unattributed = ("pull", "unattributed")
    assert unattributed not in values(take_payloads(scheduler.deliver(2000)), "handover_seconds_total")
    # One long step: nothing could have travelled meanwhile.
    assert unattributed not in values(take_payloads(scheduler.deliver(9000)), "handover_seconds_total")
    scheduler.feed(*((events.STEP_END, 12_000 + n) for n in range(3)))
    assert values(take_payloads(scheduler.deliver()), "handover_seconds_total")[unattributed] == 0.2


def test_an_idle_engine_does_not_wait_for_ever() -> None:
    scheduler = Process("decode", "pull", scheduler=True)
    scheduler.feed((events.ALLOC, 80, D_ID, 99, 4), (events.TOLD, 280, (D_ID,), (), frozenset()))
    assert values(take_payloads(scheduler.deliver(61_000)), "handover_seconds_total")["pull", "unattributed"] == 0.2


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(["sent"], "sent"), (["read", "expired"], "expired"), (["read", "read"], "read"), ([], "released")],
)
def test_a_lease_ends_as_the_workers_say(outcomes: list[str], expected: str) -> None:
    scheduler = Process("prefill", "pull", scheduler=True, ranks=max(1, len(outcomes)))
    scheduler.feed(*finish_on_p())
    for outcome in outcomes:
        worker = Process("prefill", "pull", scheduler=False)
        if outcome == "sent":
            worker = Process("prefill", "push", scheduler=False)
            worker.feed(*push_on_worker())
        elif outcome == "read":
            worker.feed((events.NOTIFIED, 200, [f"{P_ID}:1".encode()], THREAD))
            worker.feed((events.NOTIFIED, 201, [f"HB:{P_ID}".encode()], THREAD))
        if outcome != "sent":
            worker.feed((events.RESULTS, 250, (), (P_ID,), frozenset()))
        scheduler.port.told(make_output(cross(worker.deliver())))
    scheduler.feed((events.TOLD, 260, (), (P_ID,), frozenset()))
    scheduler.deliver(61_000 if not outcomes else 2000)
    (lease,) = scheduler.sink.named("lease")
    assert (lease["outcome"], lease["start"], lease["end"]) == (expected, 90, 260)
    assert lease["error"] == (expected == "expired")


def test_facts_name_requests_and_go_no_further_than_the_scheduler() -> None:
    worker, scheduler = (Process("prefill", "push", scheduler=side) for side in (False, True))
    worker.feed(*push_on_worker())
    stats = cross(worker.deliver())
    assert P_ID in str(stats.data)
    scheduler.port.told(make_output(stats))
    assert P_ID not in str(stats.data)
    assert D_ID not in str(stats.data)


def test_a_request_without_transfer_parameters_is_counted_on_a_consumer_only() -> None:
    for role, expected in (("decode", {(): 1}), ("both", {})):
        process = Process(role, "pull", scheduler=True)
        process.feed(
            (events.ARRIVE, 0, D_ID, 100, False, True, None, None, None),
            (events.ARRIVE, 0, "with", 100, False, True, "P0", P_ID, None),
        )
        assert values(take_payloads(process.deliver()), "expected_remote_missing_total") == expected


def test_blocks_held_for_each_reason() -> None:
    p, d = (Process(role, "push", scheduler=True) for role in ("prefill", "decode"))
    p.feed(*finish_on_p())
    d.feed(
        (events.ALLOC, 100, "waits", 10, 3),
        (events.ALLOC, 100, "aborted", 10, 5),
        (events.FINISH, 150, "aborted", "finished_aborted", 0, 0, 5, False),
        (events.FINISH, 160, "kept", "finished_stopped", 0, 9, 7, True),
    )
    held = values(take_payloads(p.deliver(1910)), "held_blocks")
    assert {reason for (reason,), blocks in held.items() if blocks} == {table.AWAITING_TRANSFER}
    payloads = take_payloads(d.deliver())
    assert values(payloads, "held_blocks") == {
        ("awaiting_transfer",): 0, ("awaiting_next_turn",): 7, ("awaiting_arrival",): 3, ("aborted_receive",): 5,
    }  # fmt: skip
    assert values(payloads, "oldest_held_seconds")["aborted_receive",] == 2.06
    d.feed((events.TOLD, 3000, ("aborted", "waits"), ("kept",), frozenset()))
    assert not any(values(take_payloads(d.deliver()), "held_blocks").values())


def test_delivery_is_about_once_a_second_and_exactly_once() -> None:
    worker = Process("decode", "pull", scheduler=False)
    worker.feed(*read_on_worker())
    assert worker.port.stats(None) is None, "the first second is not over"
    assert values(take_payloads(worker.deliver(1000)), "segment_seconds")["pull", "post"] == (1, 0.01)
    assert worker.port.stats(None) is None, "delivered twice"
    worker.feed(*read_on_worker("x", 10, at=1100))
    assert worker.port.stats(None) is None, "not a second after the last one"
    assert worker.deliver() is not None


def test_what_is_not_taken_is_added_to() -> None:
    worker = Process("decode", "pull", scheduler=False)
    for index in range(3):
        worker.feed(*read_on_worker(f"r{index}", index, at=5000 * index))
        worker.now += 2_000_000_000
        worker.drain()
    payloads = take_payloads(worker.port.stats(None))
    assert values(payloads, "segment_seconds")["pull", "wire"] == (3, 0.18)
    assert set(payloads[0]["r"]) == {"receive r0", "receive r1", "receive r2"}


def test_an_idle_engine_is_asked_for_one_step_that_delivers_everything() -> None:
    worker, scheduler = (Process("prefill", "push", scheduler=side) for side in (False, True))
    scheduler.feed(*finish_on_p())
    assert not scheduler.port.wants_step(), "nothing ended yet"
    scheduler.port.touch()
    worker.feed(*push_on_worker())
    scheduler.feed((events.TOLD, 260, (), (P_ID,), frozenset()))
    assert scheduler.port.wants_step()
    metadata = make_output()
    scheduler.port.plan(type("Output", (), {"total_num_scheduled_tokens": 0}), metadata)
    assert not scheduler.port.wants_step(), "asked again"
    worker.port.loading(metadata)
    stats = cross(worker.port.stats(None))
    assert stats is not None
    scheduler.port.told(make_output(stats))
    payloads = take_payloads(scheduler.port.stats(None))
    assert values(payloads, "lease_seconds") == {("sent",): (1, 0.17)}
    assert values(payloads, "held_blocks")["awaiting_transfer",] == 0
    assert not scheduler.port.wants_step()


def test_a_step_with_work_does_not_pay_for_the_flush() -> None:
    scheduler = Process("prefill", "push", scheduler=True)
    scheduler.port.touch()
    assert scheduler.port.wants_step()
    metadata = make_output()
    scheduler.port.plan(type("Output", (), {"total_num_scheduled_tokens": 5}), metadata)
    assert not hasattr(metadata, "kvlens_flush")
    assert scheduler.port.wants_step(), "it is still to be delivered"
    for _ in range(10):
        scheduler.port.wants_step()
    assert not scheduler.port.wants_step(), "an engine that never plans is not kept awake"


def test_stats_cross_both_process_borders() -> None:
    worker = Process("prefill", "push", scheduler=False)
    worker.feed(*push_on_worker())
    stats = cross(worker.deliver())
    assert isinstance(stats, TransferStats)
    payload = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()), type=dict[str, Any])
    assert list(read_payload(payload[KEY][0])) == list(read_payload(stats.data[KEY][0]))


def test_ranks_aggregate_as_vllm_does_it() -> None:
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    outputs = []
    for rank in range(3):
        worker = Process("decode", "pull", scheduler=False, rank=rank)
        worker.feed(*read_on_worker())
        # One rank has stock figures in the same step, another has nothing of its own.
        stock = make_stock(rank)
        stats = worker.port.stats(stock) if rank == 1 else worker.deliver()
        outputs.append(
            ModelRunnerOutput(
                req_ids=[], req_id_to_index={}, kv_connector_output=KVConnectorOutput(kv_connector_stats=stats)
            )
        )
    combined = KVOutputAggregator(3).aggregate(outputs)
    assert combined is not None
    stats = combined.kv_connector_output.kv_connector_stats
    assert stats.data["transfer_duration"] == [0.5]
    assert values(take_payloads(stats), "segment_seconds")["pull", "wire"] == (2, 0.12)


def make_stock(rank: int) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    stats = NixlKVConnectorStats()
    if rank == 1:
        for key, value in (("transfer_duration", 0.5), ("post_duration", 0.1), ("bytes_transferred", 8)):
            stats.data[key].append(value)
        stats.data["num_descriptors"].append(4)
    return stats


def test_stock_stats_keep_one_class_whether_recorded_or_not() -> None:
    assert extend_stats(None) is None
    assert isinstance(extend_stats(make_stock(1)), TransferStats)
    assert not extend_stats(make_stock(1)).is_empty()
    assert TransferStats().is_empty()


def test_a_multi_connector_carries_them_too() -> None:
    """It keeps its children's stats by name, and its front end rebuilds them as the stock class."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorStats

    scheduler = Process("prefill", "push", scheduler=True)
    scheduler.feed(*finish_on_p(), (events.TOLD, 260, (), (P_ID,), frozenset()))
    steps = []
    for rank in (0, 1):
        worker = Process("prefill", "push", scheduler=False)
        worker.feed(*push_on_worker())
        worker.now += 2_000_000_000
        worker.drain()
        steps.append(MultiKVConnectorStats(data={"NixlPushConnector": worker.port.stats(make_stock(1 - rank))}))
    combined = steps[0].aggregate(steps[1])
    scheduler.port.told(make_output(cross(combined)))
    scheduler.deliver()
    assert [lease["outcome"] for lease in scheduler.sink.named("lease")] == ["sent"]
    front = [MultiConnector.build_kv_connector_stats(combined.to_dict()) for _ in range(2)]
    total: Any = front[0].aggregate(front[1])
    assert total.reduce()["NixlPushConnector"]["Num successful transfers"] == 2


def test_the_payload_is_bounded() -> None:
    window = Window(LabelBounds())
    for index in range(10_000):
        window.add(table.TRANSFERRED_BYTES, ("READ", "UCX", f"engine-{index}"), 1)
        window.add(table.FAILURES, (f"type-{index}\x1f\n",), 1)
    payload = window.to_payload()
    assert len(payload["c"]) == table.MAX_PEERS + 1 + 24 + 1
    peers = values([payload], "transferred_bytes_total")
    assert peers["READ", "UCX", table.OVERFLOW] == 10_000 - table.MAX_PEERS
    assert sum(peers.values()) == 10_000


def test_a_payload_of_another_version_is_left_out() -> None:
    good = {"v": 1, "c": {"kvlens_failures_total\x1fx": 1}, "g": {}, "h": {}}
    assert len(list(read_payload(good))) == 1
    for bad in (
        {**good, "v": 2}, {**good, "c": {"kvlens_new_total": 1}}, {**good, "c": {"kvlens_failures_total": 1}},
        {**good, "c": {}, "h": {"kvlens_segment_seconds\x1fpull\x1fwire": [1, 2]}}, {},
    ):  # fmt: skip
        assert not list(read_payload(bad))


def test_merging_adds_counts_and_keeps_the_last_gauge() -> None:
    first, second = ({"v": 1, "c": {"a": n}, "g": {"g": n}, "h": {"h": [n, n]}, "r": {n: [n]}} for n in (1, 2))
    assert merge(first, second) == {"v": 1, "c": {"a": 3}, "g": {"g": 2}, "h": {"h": [3, 3]}, "r": {1: [1], 2: [2]}}

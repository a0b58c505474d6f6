"""Budgets of synthetic requests equal the ground truth they were built from, to the ns where nothing is estimated."""

import pytest
from span_builder import MS, Request, Times, World, add_request, pull_times, push_times

SLACK_MS = 0.0011
"""Builder's landing bounds are 1 us to either side of the truth."""

SKEWS = {"router": 3 * MS, "prefill": -7 * MS, "decode": 11 * MS}


def check(row, truth, at=lambda name: SLACK_MS if name in ("wire", "completion_lag") else 1e-9):
    charged = {name: value for name, value in row["segments"].items() if name in truth or value}
    assert set(charged) == {name for name in truth if name in row["segments"] or truth[name]}
    for name, value in charged.items():
        assert value == pytest.approx(truth[name] / MS, abs=at(name)), name
    assert sum(row["segments"].values()) + row["residual_ms"] == pytest.approx(row["ttft_ms"], abs=1e-9)
    assert row["residual_ms"] == pytest.approx(0, abs=1e-9)


def test_pull_segments_equal_the_truth_whatever_the_anchors(analyse):
    world = World("pull", skews=SKEWS)
    truths = {}
    for number in range(8):
        times, truths[f"r{number}"] = pull_times(number * 400 * MS, prefill_compute=100 + number, wire=20, delivery=0.5)
        add_request(world, Request(f"r{number}"), times)
    document = analyse(world)
    assert [row["request_id"] for row in document["requests"]] == list(truths)
    for row in document["requests"]:
        check(row, truths[row["request_id"]])
        assert row["hidden"] == {}
        assert row["disorder_ms"] == 0
        assert row["ttft_source"] == "router"
        assert row["tpot_ms"] == pytest.approx(10.05)  # 100 ms after the first byte, 0.5 ms delivery, 10 gaps


@pytest.mark.parametrize(
    ("late", "durations", "hidden"),
    [
        ("prefill", {"prefill_compute": 200}, {"pairing": 199, "decode_admission": 1, "registration": 1}),
        ("pairing", {"prefill_compute": 20, "d_ingress": 300, "registration": 9}, {}),
        ("admission", {"prefill_compute": 20, "decode_admission": 80, "d_ingress": 5}, {"decode_admission": 17}),
        ("registration", {"prefill_compute": 50, "registration": 90}, {"decode_admission": 1, "registration": 50}),
    ],
)  # fmt: skip
def test_push_charges_the_late_branch_and_hides_the_other(analyse, late, durations, hidden):
    world = World("push", skews=SKEWS)
    times, truth = push_times(5 * MS, **durations)
    add_request(world, Request("r"), times)
    (row,) = analyse(world)["requests"]
    check(row, truth)
    found = {name: value for name, value in row["hidden"].items() if value}
    assert found == pytest.approx(hidden)
    for name in ("decode_admission", "registration"):  # charged + hidden = the whole length of D's branch
        assert row["segments"][name] + row["hidden"][name] == pytest.approx(durations.get(name, 1.0))


def test_pull_handshake_is_taken_out_of_dispatch(analyse):
    world = World("pull")
    times, _ = pull_times(0, dispatch=50)
    world.handshake(world.decode, world.prefill, times.d_alloc + 5 * MS, times.d_alloc + 35 * MS)
    world.handshake(world.decode, world.prefill, times.d_alloc + 30 * MS, times.d_alloc + 45 * MS)  # overlaps the first
    world.handshake(world.decode, world.prefill, times.d_alloc + 5 * MS, times.post, rank=1)  # another rank's
    world.handshake(world.prefill, world.decode, times.d_alloc, times.post)  # the other direction
    add_request(world, Request("r"), times)
    (row,) = analyse(world)["requests"]
    assert row["segments"]["handshake"] == pytest.approx(40)
    assert row["segments"]["dispatch"] == pytest.approx(10)


def test_push_handshakes_of_both_engines_are_told_from_registration_and_dispatch(analyse):
    world = World("push")
    times, _ = push_times(0, prefill_compute=10, registration=60, dispatch=30)
    world.handshake(world.decode, world.prefill, times.d_alloc, times.d_alloc + 40 * MS)
    world.handshake(world.prefill, world.decode, times.seen + 2 * MS, times.seen + 22 * MS)
    add_request(world, Request("r"), times)
    (row,) = analyse(world)["requests"]
    # D got its blocks 9 ms before P was ready: that much of the handshake is hidden.
    ready, alloc = times.p_end, times.d_alloc
    hidden = (ready - alloc) / MS
    assert row["hidden"]["handshake"] == pytest.approx(hidden)
    assert row["segments"]["handshake"] == pytest.approx(40 - hidden + 20)
    assert row["segments"]["registration"] == pytest.approx(20)
    assert row["segments"]["dispatch"] == pytest.approx(10)
    assert row["residual_ms"] == pytest.approx(0)


@pytest.mark.parametrize(("mode", "make"), [("pull", pull_times), ("push", push_times)])
def test_slowest_rank_decides(analyse, mode, make):
    world = World(mode, ranks=2)
    times, truth = make(0, wire=90)
    add_request(world, Request("r"), times, slow_rank=1, slow_ns=60 * MS)
    (row,) = analyse(world)["requests"]
    assert (row["ranks"], row["slowest_rank"]) == (2, "1")
    check(row, truth)


def test_wide_brackets_are_placed_by_tight_transfers_of_the_same_route(analyse):
    world = World("pull")
    for number in range(12):
        times, _ = pull_times(number * 500 * MS, wire=40)
        add_request(world, Request(f"tight{number}"), times)
    times, _ = pull_times(9000 * MS, wire=40, completion_lag=60)
    times.landed_after, times.landed_before = times.posted, times.told  # nobody polled in between
    add_request(world, Request("wide"), times)
    row = analyse(world)["requests"][-1]
    assert row["segments"]["wire"] == pytest.approx(40, abs=0.01)
    assert row["segments"]["completion_lag"] == pytest.approx(60, abs=0.01)
    assert row["uncertainty_ms"] == pytest.approx(60, abs=0.01)


def test_push_notification_on_the_other_engine_bounds_the_landing(analyse):
    world = World("push", skews=SKEWS)
    times, _ = push_times(0, wire=30, completion_lag=50)
    times.landed_after, times.landed_before = times.landed - 2 * MS, times.landed + 40 * MS
    add_request(world, Request("r"), times)
    seen = times.landed + 2 * MS
    world.emit(world.decode, "notification", seen, seen, request_id=Request("r").d_id, request_key="r", rank=0)
    (row,) = analyse(world)["requests"]
    assert row["segments"]["wire"] == pytest.approx(30)
    assert row["uncertainty_ms"] == pytest.approx(2)


def test_prompt_that_needs_no_transfer_has_no_wire(analyse):
    world = World("pull")
    times, _ = pull_times(0)
    local = Times(**{**vars(times), "post": None, "posted": None, "landed_before": None, "told": times.d_alloc})
    local.d_sched, local.d_first = times.d_alloc + 2 * MS, times.d_alloc + 4 * MS
    local.first_byte = local.d_first + MS
    add_request(world, Request("r"), local)
    (row,) = analyse(world)["requests"]
    assert "wire" not in row["segments"]
    assert row["missing"] == []
    assert row["segments"]["decode_queue"] == pytest.approx(2)
    assert row["residual_ms"] == pytest.approx(0, abs=1e-9)


def test_milestones_out_of_order_are_repaired_and_counted(analyse):
    world = World("pull")
    times, _ = pull_times(0, handoff_dispatch=1)
    times.d_start -= 4 * MS  # 3 ms before P's end, on one clock
    add_request(world, Request("r"), times)
    (row,) = analyse(world)["requests"]
    assert min(row["segments"].values()) >= 0
    assert row["disorder_ms"] == pytest.approx(3)
    assert sum(row["segments"].values()) + row["residual_ms"] == pytest.approx(row["ttft_ms"], abs=1e-9)

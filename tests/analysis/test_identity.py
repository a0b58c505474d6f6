"""Attempts: retries with one X-Request-Id, n > 1, lost trace contexts, renamed legs, clients that share a trace."""

import pytest
from span_builder import MS, Request, World, add_request, pull_times, push_times

MODES = [("pull", pull_times), ("push", push_times)]
OWN_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(("mode", "make"), MODES)
def test_retries_with_the_same_id_are_rows_of_their_own(analyse, mode, make):
    world = World(mode)
    for attempt in range(3):
        times, _ = make(attempt * 1000 * MS, prefill_compute=100 + 50 * attempt)
        add_request(world, Request("again", suffix=f"0a1b2c{attempt}d"), times)
    document = analyse(world)
    assert [row["segments"]["prefill_compute"] for row in document["requests"]] == pytest.approx([100, 150, 200])
    assert {row["request_key"] for row in document["requests"]} == {"again"}
    assert [row["request_id"] for row in document["requests"]] == [f"cmpl-again-0-d{n}c2b1a0" for n in range(3)]
    assert max(abs(row["residual_ms"]) for row in document["requests"]) == pytest.approx(0, abs=1e-9)
    assert document["unfinished"] == []


@pytest.mark.parametrize(("mode", "make"), MODES)
def test_attempt_whose_decode_died_before_naming_its_peer_keeps_its_place(analyse, mode, make):
    world = World(mode)
    first, _ = make(0)
    first.d_alloc = first.post = first.seen = first.told = first.d_sched = first.d_first = first.first_byte = (
        first.end
    ) = None
    add_request(world, Request("again", suffix="00000001"), first)
    second, _ = make(2000 * MS)
    add_request(world, Request("again", suffix="00000002"), second)
    document = analyse(world)
    (row,) = document["requests"]
    assert row["prefill_request_id"] == "cmpl-again-0-00000002"
    (lost,) = document["unfinished"]
    assert lost["prefill_request_id"] == "cmpl-again-0-00000001"
    assert lost["waiting_for"] == ("handoff_dispatch" if mode == "pull" else "pairing")


def test_children_of_n_are_one_row_with_the_earliest_first_token(analyse):
    world = World("pull")
    for child, delay in ((0, 30), (1, 10), (2, 20)):
        times, _ = pull_times(0, decode_queue=delay, delivery=50 - delay)
        add_request(world, Request("many", child=child), times, router=child == 0, prefill=child == 0)
    (row,) = analyse(world)["requests"]
    assert row["siblings"] == 2
    assert row["decode_request_id"].startswith("1_cmpl-many")
    assert row["segments"]["decode_queue"] == pytest.approx(10)


@pytest.mark.parametrize("lost", ["prefill", "decode", "both", "router"])
def test_lost_trace_context_still_joins_by_key(analyse, lost):
    """The caller's traceparent reached some processes; the others derived the id from the key."""
    world = World("pull")
    times, _ = pull_times(0)
    with_trace, derived = Request("r", trace=OWN_TRACE), Request("r")
    sides = {
        "router": lost != "router",
        "prefill": lost not in ("prefill", "both"),
        "decode": lost not in ("decode", "both"),
    }
    for side, kept in sides.items():
        only = {name: name == side for name in sides}
        add_request(world, with_trace if kept else derived, times, **only)
    (row,) = analyse(world)["requests"]
    assert row["residual_ms"] == pytest.approx(0, abs=1e-9)
    assert row["missing"] == []
    assert row["ttft_source"] == "router"


def test_renamed_legs_join_by_trace(analyse):
    world = World("pull")
    times, _ = pull_times(0)
    add_request(world, Request("client-id", trace=OWN_TRACE), times, prefill=False, decode=False)
    add_request(world, Request("router-made", trace=OWN_TRACE), times, router=False)
    (row,) = analyse(world)["requests"]
    assert row["request_id"] == "client-id"
    assert row["residual_ms"] == pytest.approx(0, abs=1e-9)


def test_many_requests_of_one_trace_are_told_apart_by_key(analyse):
    world = World("push")
    for number in (2, 0, 1):  # overlapping in time, so that their order alone would mix them up
        times, _ = push_times(number * 5 * MS, route=1 + 30 * (2 - number), prefill_compute=100 + number)
        add_request(world, Request(f"call-{number}", trace=OWN_TRACE), times)
    rows = {row["request_id"]: row for row in analyse(world)["requests"]}
    assert {key: row["segments"]["prefill_compute"] for key, row in rows.items()} == pytest.approx(
        {"call-0": 100, "call-1": 101, "call-2": 102}
    )
    assert {key: row["segments"]["route"] for key, row in rows.items()} == pytest.approx(
        {"call-0": 61, "call-1": 31, "call-2": 1}
    )


def test_warm_up_requests_are_left_out(analyse):
    world = World("pull")
    for key in ("warmup-0", "warmup-1", "real"):
        times, _ = pull_times(0)
        add_request(world, Request(key), times)
    document = analyse(world)
    assert [row["request_id"] for row in document["requests"]] == ["real"]
    assert document["summary"]["requests"] == 1

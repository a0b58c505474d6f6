from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Sink, feed, make_scheduler

from instrumented_connectors.events import ALLOC, ARRIVE, FINISH, MATCH, STEP, STEP_END, TOLD
from instrumented_connectors.identity import derive_span_id, derive_trace_id

P_ID, D_ID = "cmpl-r-0-aaaaaaaa", "cmpl-r-0-bbbbbbbb"
LENGTH = "finished_length_capped"


def new(request_id: str, computed: int) -> SimpleNamespace:
    return SimpleNamespace(req_id=request_id, num_computed_tokens=computed)


def decode_events(request_id: str = D_ID) -> list[tuple[Any, ...]]:
    return [
        (ARRIVE, 0, request_id, 100, False, True, "P0", P_ID, None),
        (MATCH, 1, request_id, 0, 100),
        (MATCH, 4, request_id, 0, 100),
        (ALLOC, 5, request_id, 100, 4),
        (STEP, 6, {}, []),
        (STEP_END, 7),
        (TOLD, 20, (request_id,), (), frozenset()),
        (ALLOC, 21, request_id, 0, 4),
        (STEP, 22, {request_id: 1}, [new(request_id, 99)]),
        (STEP_END, 30),
        (STEP, 31, {request_id: 1}, []),
        (FINISH, 39, request_id, LENGTH, 101, 2, 4, False),
        (STEP_END, 40),
    ]


def test_a_decoded_request_becomes_its_phases() -> None:
    sink = Sink()
    feed(make_scheduler(sink, "D0"), *decode_events())
    assert sink.phases() == [
        ("decode.admission", 0, 5),
        ("lease", 5, 20),
        ("decode.remote_wait", 5, 20),
        ("decode.queue", 20, 22),
        ("decode.first_step", 22, 30),
        ("decode", 0, 39),
    ]
    root = sink.named("decode")[0]
    trace = derive_trace_id("r")
    assert root == {
        "name": "decode", "start": 0, "end": 39, "trace": trace, "span": derive_span_id("D0", D_ID), "parent": None,
        "error": False, "links": [(trace, derive_span_id("P0", P_ID))], "prompt_tokens": 100, "finish_reason": LENGTH,
        "external_tokens": 100, "local_tokens": 0, "output_tokens": 2, "peer_engine_id": "P0",
        "peer_request_id": P_ID, "block_ns": 19 * 4_000_000, "blocks_peak": 4,
    }  # fmt: skip
    assert {span["parent"] for span in sink.spans if span is not root} == {root["span"]}
    assert sink.named("decode.admission")[0]["attempts"] == 2


def test_a_prompt_in_chunks_and_its_lease() -> None:
    sink = Sink()
    feed(
        make_scheduler(sink, "P0"),
        (ARRIVE, 0, P_ID, 300, True, False, None, None, None),
        (MATCH, 1, P_ID, 64, 0),
        (ALLOC, 1, P_ID, 0, 10),
        (STEP, 2, {P_ID: 128}, [new(P_ID, 64)]),
        (STEP_END, 10),
        (STEP, 11, {P_ID: 108}, []),
        (FINISH, 20, P_ID, LENGTH, 300, 1, 10, True),
        (STEP_END, 21),
        (TOLD, 50, (), (P_ID,), frozenset()),
    )
    assert sink.phases() == [
        ("prefill.queue", 0, 2), ("prefill.compute", 2, 20), ("prefill", 0, 20), ("lease", 20, 50),
    ]  # fmt: skip
    root, lease = sink.named("prefill")[0], sink.named("lease")[0]
    assert (root["chunks"], root["cached_tokens"], root["computed_tokens"]) == (2, 64, 236)
    assert (lease["blocks"], lease["outcome"], lease["parent"]) == (10, "released", root["span"])


def test_a_one_token_answer_ends_inside_its_first_step() -> None:
    sink = Sink()
    recorded = decode_events()[:9]
    feed(make_scheduler(sink, "D0"), *recorded, (FINISH, 29, D_ID, LENGTH, 100, 1, 4, False), (STEP_END, 30))
    assert sink.phases()[-2:] == [("decode.first_step", 22, 30), ("decode", 0, 30)]


def test_steps_in_flight_end_in_their_order() -> None:
    sink = Sink()
    feed(
        make_scheduler(sink, "D0"),
        *decode_events()[:8],
        (STEP, 22, {D_ID: 1}, [new(D_ID, 99)]),
        (STEP, 23, {D_ID: 1}, []),
        (STEP_END, 30),
        (STEP_END, 35),
    )
    assert sink.named("decode.first_step")[0]["end"] == 30


def test_a_failed_fetch_is_an_error_and_a_recompute() -> None:
    sink = Sink()
    feed(
        make_scheduler(sink, "D0"),
        *decode_events()[:6],
        (TOLD, 20, (D_ID,), (), frozenset({D_ID})),
        (STEP, 22, {D_ID: 60}, [new(D_ID, 0)]),
        (STEP_END, 30),
        (STEP, 31, {D_ID: 40}, []),
        (STEP_END, 38),
    )
    wait = sink.named("decode.remote_wait")[0]
    assert (wait["outcome"], wait["error"]) == ("failed", True)
    first = sink.named("decode.first_step")[0]
    assert (first["start"], first["end"], first["steps"]) == (22, 38, 2)


def test_an_aborted_request_keeps_what_it_reached() -> None:
    sink = Sink()
    feed(make_scheduler(sink, "D0"), *decode_events()[:4], (FINISH, 9, D_ID, "finished_aborted", 0, 0, 4, False))
    assert sink.phases() == [("decode.admission", 0, 5), ("lease", 5, 9), ("decode", 0, 9)]
    assert sink.named("decode")[0]["finish_reason"] == "finished_aborted"


def test_explicit_trace_context_wins() -> None:
    sink = Sink()
    scheduler = make_scheduler(sink, "P0")
    feed(
        scheduler,
        (ARRIVE, 0, P_ID, 8, True, False, None, None, (77, 5, 1)),
        (STEP, 1, {P_ID: 8}, [new(P_ID, 0)]),
        (FINISH, 2, P_ID, LENGTH, 8, 1, 1, False),
    )
    assert {span["trace"] for span in sink.spans} == {77}
    assert sink.named("prefill")[0]["parent"] == 5


def test_pull_follows_the_prefill_requests_id_and_push_its_own() -> None:
    sink = Sink()
    rewritten = "cmpl-other-0-cccccccc"
    feed(make_scheduler(sink, "D0"), *decode_events(rewritten))
    assert {span["trace"] for span in sink.spans} == {derive_trace_id("r")}
    sink = Sink()
    feed(make_scheduler(sink, "D0", follows_peer=False), *decode_events(rewritten))
    assert {span["trace"] for span in sink.spans} == {derive_trace_id("other")}
    assert "peer_request_id" not in sink.named("decode")[0]
    assert sink.named("decode")[0]["links"] == []


@pytest.mark.parametrize("children", [2, 5])
def test_children_of_n_do_not_collide(children: int) -> None:
    sink, scheduler = Sink(), make_scheduler(Sink(), "D0")
    scheduler = make_scheduler(sink, "D0")
    for index in range(children):
        feed(scheduler, *decode_events(f"{index}_{D_ID}"))
    roots = sink.named("decode")
    assert len({span["span"] for span in roots}) == children
    assert len({span["trace"] for span in roots}) == 1


def test_forgotten_requests_are_counted_and_their_later_events_harmless() -> None:
    sink = Sink()
    scheduler = make_scheduler(sink, "D0", limit=1)
    feed(scheduler, decode_events(D_ID)[0], decode_events("cmpl-s-0-dddddddd")[0])
    assert scheduler.evicted == 1
    feed(scheduler, *decode_events(D_ID)[1:])
    assert sink.spans == []


def test_close_says_that_it_does_not_know_how_a_lease_ended() -> None:
    sink = Sink()
    scheduler = make_scheduler(sink, "P0")
    feed(
        scheduler,
        (ARRIVE, 0, P_ID, 8, True, False, None, None, None),
        (STEP, 1, {P_ID: 8}, [new(P_ID, 0)]),
        (FINISH, 2, P_ID, LENGTH, 8, 1, 1, True),
    )
    scheduler.close(9_000_000)
    assert (sink.named("lease")[0]["end"], sink.named("lease")[0]["outcome"]) == (9, "unknown")

"""A workload follows from its seed, and a record tells what the client saw."""

from __future__ import annotations

import itertools
import json
import statistics
from typing import Any

import pytest

from instrumented_connectors.identity import parse_traceparent
from lab.client import Measurement, take_chunk
from lab.errors import LabError
from lab.sse import EventSplitter, carries_token, event_json
from lab.workload import Workload, arrivals, encode_body, lengths, plan


def test_same_seed_same_plan_and_another_seed_another() -> None:
    workload = Workload(requests=12, rate=2.0, traceparent=True)
    assert plan(workload) == plan(workload)
    other = plan(Workload(requests=12, rate=2.0, traceparent=True, seed=2))
    for first, second in zip(plan(workload), other, strict=True):
        assert first.arrival_s != second.arrival_s
        assert first.prompt != second.prompt
        assert first.traceparent != second.traceparent


def test_arrivals_are_a_poisson_process() -> None:
    times = list(arrivals(Workload(requests=4000, rate=5.0)))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times == sorted(times)
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    # Exponential gaps: as much spread as mean.
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)


def test_rate_and_traceparent_do_not_change_the_prompts() -> None:
    slow, fast = plan(Workload(rate=1.0)), plan(Workload(rate=9.0, traceparent=True))
    assert [entry.prompt for entry in slow] == [entry.prompt for entry in fast]


def test_every_length_is_used_equally_often() -> None:
    chosen = lengths(Workload(requests=12, input_lens=(10, 20, 30)))
    assert sorted(chosen) == [10] * 4 + [20] * 4 + [30] * 4
    assert chosen != sorted(chosen)
    assert [len(entry.prompt) for entry in plan(Workload(requests=12, input_lens=(10, 20, 30)))] == chosen


def test_identity_is_fixed_or_numbered() -> None:
    assert [entry.request_id for entry in plan(Workload(requests=3, request_ids=("a", "b")))] == ["a", "b", "a"]
    assert len({entry.request_id for entry in plan(Workload(requests=50))}) == 50
    assert all(parse_traceparent(entry.traceparent) for entry in plan(Workload(traceparent=True)))


def test_closed_loop_by_default_and_open_loop_with_a_rate() -> None:
    assert Workload().max_in_flight == 1
    assert Workload(rate=1.0).max_in_flight is None
    assert Workload(rate=1.0, concurrency=4).max_in_flight == 4


def test_workload_survives_its_json() -> None:
    workload = Workload(input_lens=(1, 2), request_ids=("x",), extra_body={"n": 2}, turns=3, history=("lost", "fresh"))
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_body_asks_for_exact_tokens() -> None:
    body = json.loads(encode_body(Workload(output_len=7, extra_body={"temperature": 0.5}), [4, 5]))
    assert body["prompt"] == [4, 5]
    assert (body["max_tokens"], body["ignore_eos"], body["return_token_ids"]) == (7, True, True)
    assert body["temperature"] == 0.5
    assert "messages" in json.loads(encode_body(Workload(chat=True), [4, 5]))


@pytest.mark.parametrize(
    "settings",
    [{"requests": 0}, {"rate": 0.0}, {"concurrency": 0}, {"input_lens": ()}, {"input_lens": (0,)}, {"output_len": 0},
     {"turns": 0}, {"turns": 2, "chat": True}, {"history": ()}, {"history": ("forged",)}, {"gaps": "often"},
     {"think_s": -1.0}, {"changed_tokens": 0}, {"conversation_via": "mail"}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(LabError):
        Workload(**settings)


@pytest.mark.parametrize("cut", range(1, 30))
def test_events_are_whole_however_the_bytes_arrive(cut: int) -> None:
    stream = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
    splitter = EventSplitter()
    events = [*splitter.feed(stream[:cut]), *splitter.feed(stream[cut:])]
    assert [event_json(event) for event in events] == [{"choices": []}, None]


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ({"choices": [{"text": "", "token_ids": [4]}]}, True),
        ({"choices": [{"text": "", "token_ids": []}]}, False),
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"text": ""}]}, True),
        ({"choices": [{"text": "", "finish_reason": "length"}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"reasoning": "a"}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ({"choices": [], "usage": {}}, False),
    ],
)
def test_which_chunks_carry_a_token(chunk: dict[str, Any], expected: bool) -> None:
    assert carries_token(b"data: " + json.dumps(chunk).encode() + b"\n\n") is expected


def test_record_is_what_the_contract_says() -> None:
    result = Measurement(
        "x", "pull", 3, 2, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", send_ns=1_000_000
    )
    take_chunk(result, {"choices": [{"index": 0, "token_ids": [8], "text": ""}]}, 3_500_000)
    take_chunk(result, {"choices": [{"index": 1, "token_ids": [1], "text": ""}]}, 3_600_000)
    take_chunk(result, {"choices": [{"index": 0, "token_ids": [9], "text": "a"}]}, 4_000_000)
    take_chunk(result, None, 5_000_000)
    result.end_ns = 6_000_000
    assert result.record() == {
        "schema": 1,
        "request_id": "x",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "mode": "pull",
        "prompt_tokens": 3,
        "max_tokens": 2,
        "send_unix_ns": 1_000_000,
        "first_byte_unix_ns": 3_500_000,
        "token_unix_ns": [3_500_000, 4_000_000],
        "end_unix_ns": 6_000_000,
        "status": "ok",
        "error": None,
        "ttft_ms": 2.5,
        "tokens": [8, 9],
    }


def test_error_event_is_an_error() -> None:
    result = Measurement("x", "pull", 3, 2)
    take_chunk(result, {"error": {"message": "gone"}}, 1)
    record = result.record()
    assert (record["status"], record["ttft_ms"], record["tokens"]) == ("error", None, None)
    assert "gone" in record["error"]

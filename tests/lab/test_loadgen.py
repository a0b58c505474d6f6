"""The load generator against the router, and as a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import StandInEngine, answer_tokens, running_engines
from test_router import running_router

from lab.errors import ProcessDiedError
from lab.history import CHANGED
from lab.load_process import run_load_generator
from lab.loadgen import LoadGenerator
from lab.replay import replay_prompts
from lab.workload import Workload, plan


def generate(
    mode: str, workload: Workload, prepare: Callable[[Any], Awaitable[None]] | None = None
) -> tuple[list[dict[str, Any]], list[StandInEngine]]:
    async def play() -> tuple[list[dict[str, Any]], list[StandInEngine]]:
        records: list[dict[str, Any]] = []
        async with running_router(mode) as setup:
            if prepare:
                await prepare(setup)
            await LoadGenerator(setup.url, workload, mode, records.append).run()
            return records, [setup.prefill, *setup.decode]

    return asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("stream", [True, False])
def test_tokens_and_times_of_every_request(mode: str, stream: bool) -> None:
    workload = Workload(requests=6, rate=200.0, input_lens=(5, 50), output_len=4, stream=stream, traceparent=True)
    records, engines = generate(mode, workload)
    prompts = {entry.request_id: entry for entry in plan(workload)}
    assert {record["request_id"] for record in records} == set(prompts)
    for record in records:
        entry = prompts[record["request_id"]]
        assert record["status"] == "ok"
        assert record["tokens"] == answer_tokens(entry.prompt, 4)
        assert len(record["token_unix_ns"]) == 4
        assert record["send_unix_ns"] <= record["first_byte_unix_ns"] <= record["end_unix_ns"]
        assert record["trace_id"] == entry.traceparent.split("-")[1]
    headers, _ = engines[0].requests[0]
    assert headers["X-Request-Id"] in prompts


def test_router_is_told_when_the_client_sent() -> None:
    async def play() -> None:
        records: list[dict[str, Any]] = []
        async with running_router("pull") as setup:
            await LoadGenerator(setup.url, Workload(requests=1, output_len=1), "pull", records.append).run()
            request = (await setup.by_name())["router.request"]
        sent_ns = request.attributes["kv_transfer.client_sent_ns"]
        assert abs(sent_ns - records[0]["send_unix_ns"]) < 1000

    asyncio.run(play())


def test_closed_loop_has_no_more_in_flight_than_asked() -> None:
    most = 0

    async def play() -> None:
        nonlocal most
        async with running_engines() as (prefill, _):
            prefill.delay_s = 0.02
            in_flight = 0
            stock = prefill._answer

            async def counted(*arguments: Any) -> Any:
                nonlocal in_flight, most
                in_flight += 1
                most = max(most, in_flight)
                try:
                    return await stock(*arguments)
                finally:
                    in_flight -= 1

            prefill._answer = counted
            workload = Workload(requests=9, concurrency=3, input_lens=(4,), output_len=2)
            await LoadGenerator(prefill.peer.url, workload, "", lambda _: None).run()

    asyncio.run(play())
    assert most == 3


def test_failed_request_is_a_record_and_the_others_go_on() -> None:
    async def fail(setup: Any) -> None:
        setup.prefill.fail_status = 500

    records, _ = generate("pull", Workload(requests=3, output_len=2), fail)
    assert [record["status"] for record in records] == ["error"] * 3
    assert all(record["error"].startswith("HTTP 500") for record in records)
    assert all(record["ttft_ms"] is None for record in records)


def test_unreachable_router_is_an_error_record() -> None:
    records: list[dict[str, Any]] = []
    asyncio.run(LoadGenerator("http://127.0.0.1:9", Workload(requests=1), "pull", records.append).run())
    assert records[0]["status"] == "error"


def test_conversation_repeats_its_history() -> None:
    async def return_params(setup: Any) -> None:
        setup.decode[0].return_params = True

    workload = Workload(requests=1, turns=3, turn_tokens=7, input_lens=(10,), output_len=4)
    records, (prefill, _) = generate("bidirectional", workload, return_params)
    assert [record["prompt_tokens"] for record in records] == [10, 21, 32]
    assert [record["turn"] for record in records] == [0, 1, 2]
    prompts = [body["prompt"] for _, body in prefill.requests]
    for record, before, after in zip(records, prompts, prompts[1:], strict=False):
        assert after[: len(before) + 4] == before + record["tokens"]
    assert [body["kv_transfer_params"]["remote_engine_id"] for _, body in prefill.requests] == [None, "D0", "D0"]


@pytest.mark.parametrize("via", ["body", "header", "baggage"])
def test_router_learns_the_conversation_and_the_engines_do_not(via: str) -> None:
    async def play() -> None:
        async with running_router("bidirectional") as setup:
            setup.decode[0].return_params = True
            workload = Workload(requests=1, turns=2, input_lens=(10,), output_len=4, conversation_via=via)
            await LoadGenerator(setup.url, workload, "bidirectional", lambda _: None).run()
            spans: list[Any] = []
            # A request's span ends after the client has its last byte.
            while len(spans) < 2:
                await asyncio.sleep(0.01)
                setup.spans.flush()
                spans = [span for span in setup.collector.spans if span.name == "router.request"]
            told = [{name[12:]: value for name, value in span.attributes.items()} for span in spans]
            assert [(one["turn"], one["readback_offered"]) for one in told] == [(0, "first_turn"), (1, "offered")]
            assert {one["conversation_id"] for one in told} == {"conversation-req-1-00000"}
            for engine in (setup.prefill, setup.decode[0]):
                for headers, body in engine.requests:
                    assert "conversation_id" not in body
                    assert "X-Conversation-Id" not in headers

    asyncio.run(play())


def test_turns_are_what_was_planned_and_say_so() -> None:
    async def return_params(setup: Any) -> None:
        setup.decode[0].return_params = True

    kinds = ("sound", "edited", "stripped", "fresh", "lost", "paused")
    workload = Workload(
        requests=2, concurrency=2, turns=7, turn_tokens=7, input_lens=(40,), output_len=8, history=kinds, pause_s=0.3,
        think_s=0.01, gaps="exponential",
    )  # fmt: skip
    records, (prefill, _) = generate("bidirectional", workload, return_params)
    assert {record["status"] for record in records} == {"ok"}
    prompts = {headers["X-Request-Id"]: body for headers, body in prefill.requests}
    assert replay_prompts(workload, records) == {name: body["prompt"] for name, body in prompts.items()}
    for name in {record["conversation_id"] for record in records}:
        turns = [record for record in records if record["conversation_id"] == name]
        assert [turn["planned"] for turn in turns] == ["first", *kinds]
        assert turns[0]["gap_s"] is None
        assert turns[-1]["gap_s"] >= 0.3
        for before, turn in itertools.pairwise(turns):
            held = [*prompts[before["request_id"]]["prompt"], *before["tokens"]][:-1]
            sent = prompts[turn["request_id"]]["prompt"]
            assert turn["held_tokens"] == len(held)
            assert held[: turn["common_tokens"]] == sent[: turn["common_tokens"]]
            assert (turn["common_tokens"] < len(held)) is (turn["planned"] in CHANGED)
            offer = prompts[turn["request_id"]]["kv_transfer_params"]["remote_engine_id"]
            assert offer == (None if turn["planned"] == "lost" else "D0")


def test_process_reports_and_appends_every_record(tmp_path: Path) -> None:
    spec, out, log = tmp_path / "w.json", tmp_path / "client.jsonl", tmp_path / "log"
    spec.write_text(json.dumps(Workload(requests=3, output_len=2).to_json()))
    command = [sys.executable, "-m", "lab.loadgen", "--url", "http://127.0.0.1:9", "--workload", str(spec)]
    seen: list[dict[str, Any]] = []
    records = run_load_generator([*command, "--out", str(out)], log, seen.append)
    assert len(records) == 3
    assert seen == records == [json.loads(line) for line in out.read_text().splitlines()]


def test_load_generator_that_fails_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.loadgen", "--url", "x", "--workload", str(tmp_path / "missing.json")]
    with pytest.raises(ProcessDiedError, match=r"missing\.json"):
        run_load_generator(command, tmp_path / "log", lambda _: None)

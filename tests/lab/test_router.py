"""The router between small real engines that keep the P/D protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from stand_ins import StandInEngine, answer_tokens, running_engines

from instrumented_connectors.clock import Clock
from instrumented_connectors.identity import derive_trace_id
from lab.conversations import Policy
from lab.faults import write_faults
from lab.router import RouterConfig, make_app
from lab.router_spans import RouterSpans, client_sent_ns
from lab.sse import EventSplitter, event_json

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(SpanExporter):
    """Keeps the spans it is given."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


@dataclass
class Setup:
    """A router with its engines and a client."""

    url: str
    session: aiohttp.ClientSession
    prefill: StandInEngine
    decode: list[StandInEngine]
    spans: RouterSpans
    collector: Collector

    async def post(self, body: dict[str, Any], path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url + path, json=body, headers=sent) as answer:
            return answer.status, await answer.read()

    async def by_name(self) -> dict[str, ReadableSpan]:
        """Return the spans of one request; its own ends after the client has its last byte."""

        def ended() -> bool:
            self.spans.flush()
            return any(span.name == "router.request" for span in self.collector.spans)

        await eventually(ended)
        return {span.name: span for span in self.collector.spans}


@asynccontextmanager
async def running_router(mode: str, decoders: int = 1, **config: Any) -> AsyncIterator[Setup]:
    async with running_engines(decoders) as (prefill, decode):
        peers = {"prefill": (prefill.peer,), "decode": tuple(engine.peer for engine in decode)}
        collector = Collector()
        spans = RouterSpans("router", mode, collector, Clock())
        server = TestServer(make_app(RouterConfig(mode=mode, port=0, **peers, **config), spans))
        await server.start_server()
        async with aiohttp.ClientSession() as session:
            yield Setup(str(server.make_url("")).rstrip("/"), session, prefill, decode, spans, collector)
        await server.close()


def run(mode: str, scenario: Callable[[Setup], Awaitable[None]], **options: Any) -> None:
    async def play() -> None:
        async with running_router(mode, **options) as setup:
            await asyncio.wait_for(scenario(setup), 30)

    asyncio.run(play())


def completion(stream: bool = True, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "stream": stream, **more}


def streamed_tokens(content: bytes) -> list[int]:
    chunks = [event_json(event) for event in EventSplitter().feed(content)]
    return [token for chunk in chunks if chunk for choice in chunk["choices"] for token in choice.get("token_ids", [])]


def sees_disconnect(engine: StandInEngine) -> Callable[[], bool]:
    return lambda: engine.aborted > 0


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["pull", "push", "bidirectional"])
@pytest.mark.parametrize("stream", [True, False])
def test_answer_is_the_decoders_own(mode: str, stream: bool) -> None:
    async def scenario(setup: Setup) -> None:
        status, content = await setup.post(completion(stream), X_Request_Id="one")
        assert status == 200
        tokens = streamed_tokens(content) if stream else json.loads(content)["choices"][0]["token_ids"]
        assert tokens == answer_tokens([1, 2, 3], 5)
        prefill_headers, prefill_body = setup.prefill.requests[0]
        decode_headers, decode_body = setup.decode[0].requests[0]
        assert prefill_headers["X-Request-Id"] == decode_headers["X-Request-Id"] == "one"
        assert (prefill_body["max_tokens"], prefill_body["stream"]) == (1, False)
        assert decode_body["max_tokens"] == 5
        params = decode_body["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["remote_engine_id"]) == (True, "P0")

    run(mode, scenario)


def test_chat_role_chunk_is_no_token() -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].token_gap_s = 0.01
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
        status, _ = await setup.post(body, "/v1/chat/completions", X_Request_Id="chat")
        assert status == 200
        spans = await setup.by_name()
        decode, request = spans["router.decode"], spans["router.request"]
        assert decode.start_time < decode.attributes["kv_transfer.first_byte_ns"] < decode.end_time
        assert decode.attributes["kv_transfer.first_byte_ns"] <= request.attributes["kv_transfer.first_byte_ns"]

    run("pull", scenario)


def test_request_without_id_gets_one_on_both_legs() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.post(completion())
        ids = {engine.requests[0][0]["X-Request-Id"] for engine in (setup.prefill, setup.decode[0])}
        assert len(ids) == 1

    run("push", scenario)


def test_spans_derive_the_trace_from_the_request_id() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.post(completion(), X_Request_Id="key")
        spans = await setup.by_name()
        assert set(spans) == {"router.request", "router.prefill", "router.decode"}
        request = spans["router.request"]
        assert {span.context.trace_id for span in spans.values()} == {derive_trace_id("key")}
        assert request.parent is None
        assert {spans[leg].parent.span_id for leg in ("router.prefill", "router.decode")} == {request.context.span_id}
        assert spans["router.prefill"].end_time <= spans["router.decode"].start_time
        attributes = dict(request.attributes)
        assert attributes.pop("kv_transfer.first_byte_ns") <= request.end_time
        assert attributes.pop("kv_transfer.request_id")
        assert attributes == {
            "kv_transfer.request_key": "key",
            "kv_transfer.mode": "pull",
            "kv_transfer.streaming": True,
            "kv_transfer.status": "ok",
            "kv_transfer.prompt_tokens": 3,
        }
        assert "traceparent" not in setup.prefill.requests[0][0]
        assert "traceparent" not in setup.prefill.requests[0][1]["kv_transfer_params"]

    run("pull", scenario)


def test_traceparent_reaches_both_engines_with_the_leg_as_parent() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.post(completion(), X_Request_Id="key", traceparent=TRACEPARENT)
        spans = await setup.by_name()
        assert f"{spans['router.request'].parent.span_id:016x}" == "b7ad6b7169203331"
        for name, engine in (("router.prefill", setup.prefill), ("router.decode", setup.decode[0])):
            headers, body = engine.requests[0]
            expected = f"00-0af7651916cd43dd8448eb211c80319c-{spans[name].context.span_id:016x}-01"
            assert headers["traceparent"] == expected
            assert body["kv_transfer_params"]["traceparent"] == expected

    run("push", scenario)


@pytest.mark.parametrize(("propagate", "sent", "expected"), [("never", True, False), ("always", False, True)])
def test_router_can_drop_or_make_traceparent(propagate: str, sent: bool, expected: bool) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.post(completion(), **({"traceparent": TRACEPARENT} if sent else {}))
        assert ("traceparent" in setup.decode[0].requests[0][0]) is expected

    run("pull", scenario, propagate=propagate)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_router_that_rewrites_ids_sends_one_to_both_engines_and_keeps_the_clients(mode: str) -> None:
    async def scenario(setup: Setup) -> None:
        body = completion()
        async with setup.session.post(
            setup.url + "/v1/completions", json=body, headers={"X-Request-Id": "mine"}
        ) as answer:
            assert answer.headers["X-Request-Id"] == "mine"
            assert streamed_tokens(await answer.read()) == answer_tokens([1, 2, 3], 5)
        sent = {engine.requests[0][0]["X-Request-Id"] for engine in (setup.prefill, setup.decode[0])}
        assert len(sent) == 1
        assert sent != {"mine"}
        assert (await setup.by_name())["router.request"].attributes["kv_transfer.request_key"] == "mine"

    run(mode, scenario, rewrite_ids=True)


def test_push_sends_both_legs_at_once() -> None:
    async def scenario(setup: Setup) -> None:
        setup.prefill.open.clear()
        request = asyncio.create_task(setup.post(completion()))
        await eventually(lambda: bool(setup.prefill.requests and setup.decode[0].requests))
        assert not request.done()
        setup.prefill.open.set()
        assert (await request)[0] == 200

    run("push", scenario)


def test_pull_sends_the_decode_leg_when_prefill_is_done() -> None:
    async def scenario(setup: Setup) -> None:
        setup.prefill.open.clear()
        request = asyncio.create_task(setup.post(completion()))
        await eventually(lambda: bool(setup.prefill.requests))
        await asyncio.sleep(0.1)
        assert not setup.decode[0].requests
        setup.prefill.open.set()
        assert (await request)[0] == 200

    run("pull", scenario)


def test_decoders_take_turns() -> None:
    async def scenario(setup: Setup) -> None:
        for _ in range(4):
            await setup.post(completion())
        assert [len(engine.requests) for engine in setup.decode] == [2, 2]

    run("pull", scenario, decoders=2)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_failed_prefill_is_the_clients_status_and_ends_the_decode_leg(mode: str) -> None:
    async def scenario(setup: Setup) -> None:
        setup.prefill.fail_status = 503
        setup.prefill.delay_s = 0.1
        status, content = await setup.post(completion(), X_Request_Id="bad")
        assert status == 503
        assert b"P0" in content
        if mode == "push":
            await eventually(sees_disconnect(setup.decode[0]))
        else:
            assert not setup.decode[0].requests
        spans = await setup.by_name()
        assert not spans["router.request"].status.is_ok
        assert spans["router.request"].attributes["kv_transfer.error"].startswith("P0: ")
        assert spans["router.prefill"].attributes["kv_transfer.status"] == "error"

    run(mode, scenario)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_unreachable_decoder_is_a_bad_gateway(mode: str) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.decode[0].server.close()
        status, content = await setup.post(completion())
        assert status == 502
        assert b"D0" in content

    run(mode, scenario)


def test_decoder_that_dies_in_the_stream_is_an_error_event() -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].token_gap_s = 0.2
        async with setup.session.post(setup.url + "/v1/completions", json=completion()) as answer:
            await answer.content.readuntil(b"\n\n")
            for connection in setup.decode[0].server.runner.server.connections:
                connection.transport.abort()
            rest = await answer.read()
        assert b'"error"' in rest
        assert (await setup.by_name())["router.decode"].attributes["kv_transfer.status"] == "error"

    run("pull", scenario)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_client_that_leaves_ends_its_legs(mode: str) -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].token_gap_s = 0.2
        async with setup.session.post(setup.url + "/v1/completions", json=completion()) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await eventually(sees_disconnect(setup.decode[0]))
        await asyncio.sleep(0.1)
        spans = await setup.by_name()
        assert "client disconnected" in spans["router.request"].attributes["kv_transfer.error"]

    run(mode, scenario)


def test_client_that_leaves_during_prefill_ends_it() -> None:
    async def scenario(setup: Setup) -> None:
        setup.prefill.open.clear()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(setup.post(completion()), 0.2)
        await eventually(sees_disconnect(setup.prefill))
        assert not setup.decode[0].requests

    run("pull", scenario)


def test_several_prompts_are_refused() -> None:
    async def refuse_only(setup: Setup) -> None:
        status, _ = await setup.post(completion(prompt=[[1], [2]]))
        assert status == 400
        async with setup.session.post(setup.url + "/v1/completions", data=b"{") as answer:
            assert answer.status == 400

    run("pull", refuse_only)


@pytest.mark.parametrize("stream", [True, False])
def test_second_turn_reads_back_from_the_decoder_that_has_the_blocks(stream: bool) -> None:
    async def scenario(setup: Setup) -> None:
        for engine in setup.decode:
            engine.return_params = True
        for _ in range(3):
            await setup.post(completion(stream, conversation_id="c"))
        first, *later = [body["kv_transfer_params"] for _, body in setup.prefill.requests]
        assert first["remote_engine_id"] is None
        served = [engine for engine in setup.decode if engine.requests]
        assert [len(engine.requests) for engine in served] == [3]
        for params in later:
            assert params["do_remote_decode"] is True
            assert params["remote_engine_id"] == served[0].id
            assert params["remote_num_tokens"] == 3

    run("bidirectional", scenario, decoders=2)


def test_parameters_meant_for_the_router_stay_there() -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].return_params = True
        _, content = await setup.post(completion(conversation_id="c"))
        assert b"kvlens" not in content
        assert content.endswith(b"data: [DONE]\n\n")

    run("bidirectional", scenario)


def test_moving_conversation_is_read_back_from_where_its_blocks_are() -> None:
    async def scenario(setup: Setup) -> None:
        for engine in setup.decode:
            engine.return_params = True
        for _ in range(3):
            await setup.post(completion(), X_Conversation_Id="c")
        assert [len(engine.requests) for engine in setup.decode] == [2, 1]
        offered = [body["kv_transfer_params"]["remote_engine_id"] for _, body in setup.prefill.requests]
        assert offered == [None, "D0", "D1"]

    run("bidirectional", scenario, decoders=2, conversations=Policy(sticky=False))


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_conversation_stays_with_its_decoder_in_every_mode(mode: str) -> None:
    async def scenario(setup: Setup) -> None:
        for name in "abab":
            await setup.post(completion(), X_Conversation_Id=name)
        served = [[body["prompt"] for _, body in engine.requests] for engine in setup.decode]
        assert [len(requests) for requests in served] == [2, 2]

    run(mode, scenario, decoders=2)


def test_interleaved_conversations_get_their_own_blocks() -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].return_params = True
        for turn in range(2):
            for name in ("x", "y"):
                await setup.post(completion(), X_Conversation_Id=name, X_Request_Id=f"{name}{turn}")
        offered = [body["kv_transfer_params"].get("remote_request_id") for _, body in setup.prefill.requests]
        assert offered == [None, None, "cmpl-x0-0", "cmpl-y0-0"]

    run("bidirectional", scenario)


def test_answer_without_parameters_is_lost_metadata() -> None:
    async def scenario(setup: Setup) -> None:
        for _ in range(2):
            await setup.post(completion(), X_Conversation_Id="c")
        assert setup.prefill.requests[1][1]["kv_transfer_params"]["remote_engine_id"] is None
        async with setup.session.get(setup.url + "/conversations") as answer:
            assert (await answer.json())["counts"] == {"first_turn": 1, "lost": 1}

    run("bidirectional", scenario)


def test_router_can_be_made_to_forget() -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].return_params = True
        await setup.post(completion(), X_Conversation_Id="a b")
        for had in (True, False):
            async with setup.session.delete(setup.url + "/conversations/a%20b") as answer:
                assert await answer.json() == {"had": had}
        await setup.post(completion(), X_Conversation_Id="a b")
        assert setup.prefill.requests[1][1]["kv_transfer_params"]["remote_engine_id"] is None

    run("bidirectional", scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_changed_history_is_seen_where_the_router_compares(stream: bool) -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].return_params = True
        for prompt in ([1, 2, 3], [1, 2, 3, 9], [1, 7, 3, 9]):
            await setup.post(completion(stream, prompt=prompt), X_Conversation_Id="c")
        async with setup.session.get(setup.url + "/conversations") as answer:
            assert (await answer.json())["counts"] == {"first_turn": 1, "offered": 1, "edited_dropped": 1}

    run("bidirectional", scenario, conversations=Policy(edited="drop"))


@pytest.mark.parametrize("retry", [True, False])
def test_prefill_that_fails_with_a_readback_is_sent_again_without(retry: bool) -> None:
    async def scenario(setup: Setup) -> None:
        setup.decode[0].return_params = True
        await setup.post(completion(), X_Conversation_Id="c")
        setup.prefill.fails_readback = True
        status, content = await setup.post(completion(), X_Conversation_Id="c")
        offered = [body["kv_transfer_params"]["remote_engine_id"] for _, body in setup.prefill.requests]
        if retry:
            assert (status, offered) == (200, [None, "D0", None])
            assert streamed_tokens(content) == answer_tokens([1, 2, 3], 5)
        else:
            assert (status, offered) == (500, [None, "D0"])

    run("bidirectional", scenario, retry=retry)


@pytest.mark.parametrize("site", ["router_dispatch", "router_decode_leg", "pairing"])
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_router_faults_delay_the_decode_leg(site: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"

    async def scenario(setup: Setup) -> None:
        write_faults(path, {site: 300})
        await asyncio.sleep(0.05)
        await setup.post(completion(), X_Request_Id="late")
        spans = await setup.by_name()
        request, prefill, decode = (spans[f"router.{name}"] for name in ("request", "prefill", "decode"))
        earlier = prefill.end_time if mode == "pull" else prefill.start_time
        if (site, mode) == ("router_dispatch", "push"):
            earlier = request.start_time
            assert prefill.start_time - request.start_time >= 250e6
        assert decode.start_time - earlier >= 250e6

    run(mode, scenario, fault_file=path)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("t=1999999.5", 1_999_999_500),
        ("t=2000001", None),
        ("t=abc", None),
        ("", None),
        ("t=nan", None),
        ("t=inf", None),
    ],
)
def test_client_sent_time_is_believed_only_if_it_can_be_true(header: str, expected: int | None) -> None:
    assert client_sent_ns({"X-Request-Start": header}, 2_000_000_000) == expected


def test_client_sent_time_older_than_a_minute_is_another_clock() -> None:
    assert client_sent_ns({"X-Request-Start": "t=1"}, 61_000_000_000) is None

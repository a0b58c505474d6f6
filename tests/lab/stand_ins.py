"""Small real engines for the router's tests: HTTP servers that keep the P/D protocol, without a model.

They check what vLLM would check (a read needs P's blocks, a push pairs by request id) and answer deterministic tokens,
so that a router that mixes up legs, ids or parameters gets wrong answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from lab.legs import Peer
from lab.stream_params import EVENT_KEY


def answer_tokens(prompt: list[int], count: int) -> list[int]:
    """Return the tokens that both engines make of a prompt."""
    return [(sum(prompt) + index) % 1000 for index in range(count)]


class StandInEngine:
    """One engine: `requests` holds (headers, body) of all it got, `aborted` how many clients left before the end."""

    def __init__(self, engine_id: str, blocks: dict[str, asyncio.Event]) -> None:
        self.id = engine_id
        self.blocks = blocks
        self.requests: list[tuple[Mapping[str, str], dict[str, Any]]] = []
        self.aborted = 0
        self.fail_status: int | None = None
        self.fails_readback = False
        self.delay_s = 0.0
        self.open = asyncio.Event()
        self.open.set()
        self.token_gap_s = 0.0
        self.return_params = False
        self.server: TestServer | None = None

    @property
    def peer(self) -> Peer:
        assert self.server is not None
        return Peer(self.id, str(self.server.make_url("")).rstrip("/"), "127.0.0.1", 5600)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.headers.copy(), body))
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await self.open.wait()
        await asyncio.sleep(self.delay_s)
        if self.fail_status is not None:
            return web.json_response({"error": {"message": "no"}}, status=self.fail_status)
        name = f"cmpl-{request.headers['X-Request-Id']}-0"
        params = body.get("kv_transfer_params") or {}
        if self.fails_readback and params.get("do_remote_decode") and params.get("remote_block_ids"):
            return web.json_response({"error": {"message": "expired"}}, status=500)
        if params.get("do_remote_decode"):
            self.blocks.setdefault(name, asyncio.Event()).set()
        if params.get("do_remote_prefill"):
            await self.blocks.setdefault(params["remote_request_id"], asyncio.Event()).wait()
        tokens = answer_tokens(prompt_of(body), body["max_tokens"])
        back = {
            "do_remote_prefill": bool(params.get("do_remote_decode")),
            "do_remote_decode": bool(params.get("do_remote_prefill")),
            "remote_engine_id": self.id,
            "remote_request_id": name,
            "remote_block_ids": [[1, 2]],
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": len(prompt_of(body)),
        }
        if body.get("stream"):
            return await self._stream(request, tokens, back if self.return_params else None)
        choice = {"index": 0, "text": "x", "token_ids": tokens, "finish_reason": "length"}
        usage = {"prompt_tokens": len(prompt_of(body))}
        return web.json_response({"choices": [choice], "usage": usage, "kv_transfer_params": back})

    async def _stream(self, request: web.Request, tokens: list[int], back: dict[str, Any] | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if request.path.endswith("chat/completions"):
            await self._event(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for token in tokens:
            field = {"delta": {"content": "x"}} if request.path.endswith("chat/completions") else {"text": "x"}
            await self._event(response, {"choices": [{"index": 0, "token_ids": [token], **field}]})
            await asyncio.sleep(self.token_gap_s)
        if back:
            await self._event(response, {EVENT_KEY: back})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Return the prompt as numbers, also that of a chat."""
    if "messages" in body:
        return [len(message["content"]) for message in body["messages"]]
    return list(body["prompt"])


@asynccontextmanager
async def running_engines(decoders: int = 1) -> AsyncIterator[tuple[StandInEngine, list[StandInEngine]]]:
    """Run one P and some D that see the same blocks."""
    blocks: dict[str, asyncio.Event] = {}
    engines = [StandInEngine(name, blocks) for name in ("P0", *(f"D{index}" for index in range(decoders)))]
    try:
        for engine in engines:
            app = web.Application(client_max_size=2**26)
            app.router.add_post("/v1/completions", engine.serve)
            app.router.add_post("/v1/chat/completions", engine.serve)
            engine.server = TestServer(app)
            await engine.server.start_server()
        yield engines[0], engines[1:]
    finally:
        for engine in engines:
            if engine.server:
                await engine.server.close()

"""One request on its way through the router: its two legs, what is written to the client, what went wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import ClientError, web

from instrumented_connectors.catalogue import ROUTER_DECODE, ROUTER_PREFILL

from .conversations import read_conversation
from .legs import CHAT, Peer, decode_body, prefill_body, prompt_ids, push_params
from .router_spans import LegSpan, RequestSpans
from .sse import EventSplitter, carries_token, event_json
from .stream_params import EVENT_KEY

if TYPE_CHECKING:
    from .router import Router

logger = logging.getLogger("lab.router")

_FORWARDED = ("Authorization", "tracestate")
_ERROR_EVENT = b'data: {"error"'
_PARAMS_EVENT = f'"{EVENT_KEY}"'.encode()


class LegError(Exception):
    """A leg failed: which engine, the HTTP status for the client (502 when the engine could not be reached), why."""

    def __init__(self, peer: Peer, status: int, reason: str) -> None:
        super().__init__(f"{peer.id}: {reason}")
        self.status = status


class Attempt:
    """One request: run its legs in the order of the mode and pass D's answer to the client.

    `engine_id` is the X-Request-Id of both legs.
    """

    def __init__(
        self, router: Router, spans: RequestSpans, request: web.Request, body: dict[str, Any], engine_id: str
    ) -> None:
        self._router, self._spans, self._request, self._body = router, spans, request, body
        self._engine_id = engine_id
        self._chat = request.path == CHAT
        self._mode = router.config.mode
        self._conversation = read_conversation(request.headers, body)
        self._prompt, self._answer = prompt_ids(body), []
        self._offer = router.conversations.begin(self._conversation, self._prompt)
        spans.set(conversation_id=self._conversation, turn=self._offer.turn)
        if self._mode == "bidirectional":
            spans.set(readback_offered=self._offer.kind)
        self._p, self._d = router.choose_peers(self._offer.decoder)
        self._response: web.StreamResponse | None = None
        self.error: str | None = None
        self.is_complete = False
        self.first_byte_ns: int | None = None
        self.prompt_tokens: int | None = None

    async def run(self) -> web.StreamResponse:
        """Serve the request; returns the finished response.

        Raises:
            LegError: a leg failed before anything was written to the client.
        """
        if self._mode == "push":
            return await self._run_push()
        return await self._run_pull()

    async def fail(self, failure: LegError) -> web.StreamResponse:
        """Tell the client that a leg failed: as a status, or as an error event once the stream has begun."""
        message = {"error": {"message": str(failure), "type": "engine_error", "code": failure.status}}
        if self._response is None:
            return web.json_response(message, status=failure.status, headers=self._response_headers())
        with suppress(ConnectionError):
            await self._response.write(f"data: {json.dumps(message)}\n\ndata: [DONE]\n\n".encode())
            await self._response.write_eof()
        return self._response

    async def _run_pull(self) -> web.StreamResponse:
        params = await self._prefill_with_readback()
        if params is None:
            logger.warning(
                "%s returned no transfer parameters for %s: D computes the prompt", self._p.id, self._engine_id
            )
        await self._router.delay("router_dispatch")
        await self._router.delay("router_decode_leg")
        await self._router.delay("pairing")
        return await self._decode(params)

    async def _prefill_with_readback(self) -> dict[str, Any] | None:
        """Run the prefill leg with what is offered; without, if the engine fails with it.

        With vLLM's own `kv_load_failure_policy` (fail) a read that expired or broke is an error of the request.
        """
        readback = dict(self._offer.readback)
        try:
            return await self._prefill(readback)
        except LegError as failure:
            if not readback or failure.status < 500 or not self._router.config.retry:
                raise
            logger.warning("%s failed with a readback (%s): sent again without", self._engine_id, failure)
            self._router.conversations.counts["retried"] += 1
        return await self._prefill({})

    async def _run_push(self) -> web.StreamResponse:
        await self._router.delay("router_dispatch")
        prefill = asyncio.create_task(self._prefill({}))
        decode = asyncio.create_task(self._decode_late())
        try:
            done, _ = await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if prefill in done:
                # A failed P will never write the blocks: D would wait for them until its watchdog.
                prefill.result()
            elif decode.exception() is None and not prefill.done():
                await prefill
            return await decode
        finally:
            await _cancel(prefill, decode)

    async def _decode_late(self) -> web.StreamResponse:
        await self._router.delay("router_decode_leg")
        await self._router.delay("pairing")
        return await self._decode(push_params(self._p, self._engine_id, self._chat))

    async def _prefill(self, extra: dict[str, Any]) -> dict[str, Any] | None:
        """Run the prefill leg; returns P's transfer parameters."""
        leg = self._spans.begin_leg(ROUTER_PREFILL, self._p.id)
        error: str | None = "cancelled"
        try:
            traceparent = self._traceparent(leg)
            body = prefill_body(self._body, self._mode, {**extra, **_trace_params(traceparent)}, self._chat)
            answer = await self._post_whole(self._p, body, traceparent)
            error = None
        except LegError as failure:
            error = str(failure)
            raise
        finally:
            leg.end(error)
        self.prompt_tokens = (answer.get("usage") or {}).get("prompt_tokens")
        params = answer.get("kv_transfer_params")
        return params if isinstance(params, dict) else None

    async def _decode(self, params: dict[str, Any] | None) -> web.StreamResponse:
        """Run the decode leg and pass its answer on."""
        leg = self._spans.begin_leg(ROUTER_DECODE, self._d.id)
        clock = self._router.spans.clock
        self._router.conversations.remember(self._conversation, self._d.id, None)
        first_byte_ns: int | None = None
        error: str | None = "cancelled"
        try:
            traceparent = self._traceparent(leg)
            body = decode_body(self._body, params, _trace_params(traceparent))
            if not self._body.get("stream"):
                answer = await self._post_whole(self._d, body, traceparent)
                first_byte_ns = clock.wall_ns()
                error = None
                self._collect(answer)
                self._remember(answer.get("kv_transfer_params"))
                response = web.json_response(answer, headers=self._response_headers())
                await response.prepare(self._request)
                await response.write_eof()
                self._response, self.first_byte_ns = response, clock.wall_ns()
                return response
            async for event in self._post_stream(self._d, body, traceparent):
                is_first = first_byte_ns is None and carries_token(event)
                if is_first:
                    first_byte_ns = clock.wall_ns()
                await self._pass_on(event)
                if is_first:
                    self.first_byte_ns = clock.wall_ns()
            error = self.error
        except LegError as failure:
            error = str(failure)
            raise
        finally:
            leg.end(error, first_byte_ns=first_byte_ns)
        return await self._finish_stream()

    async def _pass_on(self, event: bytes) -> None:
        """Write one event of D's stream to the client, except the one that is meant for the router."""
        if _PARAMS_EVENT in event and (chunk := event_json(event)):
            self._remember(chunk.get(EVENT_KEY))
            return
        if self._router.conversations.compares:
            self._collect(event_json(event))
        if event.startswith(_ERROR_EVENT):
            self.error = f"{self._d.id}: {event[6:300].decode('utf-8', 'replace').strip()}"
        if self._response is None:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **self._response_headers()}
            self._response = web.StreamResponse(headers=headers)
            await self._response.prepare(self._request)
        await self._response.write(event)

    def _collect(self, chunk: dict[str, Any] | None) -> None:
        """Keep the token ids of the answer, as far as D tells them."""
        for choice in (chunk or {}).get("choices") or ():
            if choice.get("index", 0) == 0:
                self._answer.extend(choice.get("token_ids") or ())

    def _remember(self, params: object) -> None:
        tokens = [*self._prompt, *self._answer] if self._prompt and self._answer else None
        self._router.conversations.remember(self._conversation, self._d.id, params, tokens)

    async def _finish_stream(self) -> web.StreamResponse:
        if self._response is None:
            raise LegError(self._d, 502, "the stream ended without any event")
        # A client may read the end and be gone before this handler runs again: that is no disconnect.
        self.is_complete = True
        await self._response.write_eof()
        return self._response

    async def _post_whole(self, peer: Peer, body: dict[str, Any], traceparent: str | None) -> dict[str, Any]:
        """Send a leg and return its whole JSON answer."""
        try:
            async with self._open(peer, body, traceparent) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise LegError(peer, answer.status, content[:2000].decode("utf-8", "replace"))
                value = json.loads(content)
        except (ClientError, OSError, ValueError) as error:
            raise LegError(peer, 502, f"{type(error).__name__}: {error}") from error
        if not isinstance(value, dict):
            raise LegError(peer, 502, "the answer is not a JSON object")
        return value

    async def _post_stream(self, peer: Peer, body: dict[str, Any], traceparent: str | None) -> AsyncIterator[bytes]:
        """Send a leg and yield the events of its streamed answer."""
        splitter = EventSplitter()
        try:
            async with self._open(peer, body, traceparent) as answer:
                if answer.status != 200:
                    content = await answer.read()
                    raise LegError(peer, answer.status, content[:2000].decode("utf-8", "replace"))
                async for piece in answer.content.iter_any():
                    for event in splitter.feed(piece):
                        yield event
        except ClientError as error:
            raise LegError(peer, 502, f"{type(error).__name__}: {error}") from error

    def _open(self, peer: Peer, body: dict[str, Any], traceparent: str | None) -> Any:
        headers = {"Content-Type": "application/json", "X-Request-Id": self._engine_id}
        headers |= {name: value for name in _FORWARDED if (value := self._request.headers.get(name))}
        if traceparent:
            headers["traceparent"] = traceparent
        return self._router.session.post(peer.url + self._request.path, data=json.dumps(body).encode(), headers=headers)

    def _traceparent(self, leg: LegSpan) -> str | None:
        """Return the traceparent of a leg's request: this leg as parent, the client's own where spans are off."""
        sent = self._request.headers.get("traceparent")
        propagate = self._router.config.propagate
        if propagate == "never" or (propagate == "client" and not sent):
            return None
        return leg.traceparent or sent

    def _response_headers(self) -> dict[str, str]:
        return {"X-Request-Id": self._request.headers.get("X-Request-Id") or self._engine_id}


def _trace_params(traceparent: str | None) -> dict[str, str]:
    return {"traceparent": traceparent} if traceparent else {}


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait for it; an aborted leg closes its connection, which aborts it in the engine."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

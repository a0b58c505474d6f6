"""Reference router of a P/D pair: OpenAI completions and chat, streamed or not. ``python -m lab.router --config FILE``.

Pull and bidirectional run the legs one after the other, push runs both at once. The client's ``X-Request-Id`` and
``traceparent`` reach both engines, the latter also inside the transfer parameters, since vLLM drops the header.
Conversations stay with the D that holds their blocks, and in bidirectional mode P is offered these (`conversations`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from .conversations import Conversations, Policy
from .faults import FaultFile
from .legs import CHAT, COMPLETIONS, Peer, check_body
from .ports import HOST
from .priority import run_promptly
from .route import Attempt, LegError
from .router_spans import RouterSpans, make_router_spans

logger = logging.getLogger("lab.router")

# uvicorn closes idle connections after 5 s; a shorter life here means no request meets a connection that just closed.
_KEEPALIVE_S = 4.0
_MAX_BODY = 256 * 2**20


@dataclass(frozen=True)
class RouterConfig:
    """What a router needs to know.

    mode: push, pull or bidirectional; propagate: "client" forwards a traceparent only if the client sent one,
    "always" makes one, "never" drops it (as many routers do); rewrite_ids: the engines get an id of the router's own
    instead of the client's X-Request-Id (as vLLM's example proxies do); traces: folder for its spans; conversations:
    what it does with them where it has a choice; retry: a prefill leg that fails with a readback is sent again without.
    """

    mode: str
    port: int
    prefill: tuple[Peer, ...]
    decode: tuple[Peer, ...]
    id: str = "router"
    traces: Path | None = None
    fault_file: Path | None = None
    propagate: str = "client"
    rewrite_ids: bool = False
    conversations: Policy = field(default_factory=Policy)
    retry: bool = True


@dataclass
class Router:
    """State of the running router."""

    config: RouterConfig
    spans: RouterSpans
    session: ClientSession
    faults: FaultFile

    def __post_init__(self) -> None:
        self._prefill, self._decode = cycle(self.config.prefill), cycle(self.config.decode)
        self.conversations = Conversations(self.config.mode, self.config.conversations)

    def choose_peers(self, decoder: str | None) -> tuple[Peer, Peer]:
        """Return the next P and D in turn; `decoder` is the id of the D that a conversation stays with."""
        pinned = next((peer for peer in self.config.decode if peer.id == decoder), None)
        return next(self._prefill), pinned or next(self._decode)

    async def delay(self, site: str) -> None:
        """Wait as long as a fault of the router says."""
        if seconds := self.faults.delay_s(site):
            await asyncio.sleep(seconds)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one completion or chat request."""
        received_ns = self.spans.clock.wall_ns()
        try:
            body = await request.json()
            problem = check_body(body) if isinstance(body, dict) else "the body must be a JSON object"
        except ValueError as error:
            problem = f"the body is not JSON: {error}"
        if problem:
            return _error(400, problem)
        request_id = request.headers.get("X-Request-Id") or uuid4().hex
        spans = self.spans.begin(request_id, request.headers, received_ns, bool(body.get("stream")))
        attempt = Attempt(self, spans, request, body, uuid4().hex if self.config.rewrite_ids else request_id)
        error: str | None = "client disconnected"
        try:
            response = await attempt.run()
            error = attempt.error
        except LegError as failure:
            error = str(failure)
            logger.warning("request %s failed: %s", request_id, error)
            response = await attempt.fail(failure)
        except ConnectionError as failure:
            error = f"client disconnected: {failure}"
            raise
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            if attempt.is_complete:
                error = attempt.error
            spans.end(error, first_byte_ns=attempt.first_byte_ns, prompt_tokens=attempt.prompt_tokens)
        return response


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "router_error", "code": status}}, status=status)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def make_app(config: RouterConfig, spans: RouterSpans | None = None) -> web.Application:
    """Return the router as an aiohttp application (tests give their own spans)."""
    app = web.Application(client_max_size=_MAX_BODY)

    handlers: dict[str, Any] = {}

    async def lifetime(app: web.Application) -> Any:
        faults = FaultFile(config.fault_file, ("router", config.id))
        connector = TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        timeout = ClientTimeout(total=None, sock_connect=10)
        own = spans or make_router_spans(config.id, config.mode, config.traces)
        async with ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
            router = Router(config, own, session, faults)
            handlers["serve"], handlers["conversations"] = router.serve, router.conversations
            yield
        if spans is None:
            own.close()

    async def serve(request: web.Request) -> web.StreamResponse:
        return await handlers["serve"](request)

    async def models(_: web.Request) -> web.Response:
        async with ClientSession() as session, session.get(f"{config.decode[0].url}/v1/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)

    async def show_conversations(_: web.Request) -> web.Response:
        return web.json_response(handlers["conversations"].describe())

    async def forget(request: web.Request) -> web.Response:
        return web.json_response({"had": handlers["conversations"].forget(request.match_info["id"])})

    app.cleanup_ctx.append(lifetime)
    app.router.add_post(COMPLETIONS, serve)
    app.router.add_post(CHAT, serve)
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/conversations", show_conversations)
    app.router.add_delete("/conversations/{id}", forget)
    return app


def load_config(path: Path) -> RouterConfig:
    """Read a router's configuration file."""
    value = json.loads(path.read_text(encoding="utf-8"))
    for name in ("traces", "fault_file"):
        value[name] = Path(value[name]) if value.get(name) else None
    for name in ("prefill", "decode"):
        value[name] = tuple(Peer(**peer) for peer in value[name])
    value["conversations"] = Policy(**value.get("conversations") or {})
    return RouterConfig(**value)


def main() -> None:
    """Run the router until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m lab.router", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = load_config(parser.parse_args().config)
    logging.basicConfig(level=os.environ.get("KVLENS_LAB_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    logger.info("mode %s on port %d, P %s, D %s", config.mode, config.port, config.prefill, config.decode)
    # What exists now stays; a collection in the middle of a request would be measured as routing.
    gc.freeze()
    run_promptly()
    # handler_cancellation: a client that goes away ends its legs, and with them the work on both engines.
    web.run_app(
        make_app(config), host=HOST, port=config.port, print=None, access_log=None, handler_cancellation=True,
        shutdown_timeout=2.0,
    )  # fmt: skip


if __name__ == "__main__":
    main()

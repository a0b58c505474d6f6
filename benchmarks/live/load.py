"""Requests in the background of an incident: through the router at a steady rate, or to one engine alone."""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from lab.engine import Engine
from lab.legs import COMPLETIONS, Peer, push_params
from lab.model import SERVED_NAME
from lab.ports import HOST
from lab.run import Pair
from lab.workload import make_tokens

REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}


def make_body(length: int, output_len: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME, "prompt": make_tokens(random.Random(length), length), "max_tokens": output_len,
        "temperature": 0, "ignore_eos": True, **more,
    }  # fmt: skip


def ask(url: str, request_id: str, body: dict[str, Any], timeout_s: float = 60) -> dict[str, Any] | None:
    """Send a completion and return its answer; None when it failed, as some of an incident do."""
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    request = urllib.request.Request(f"{url}{COMPLETIONS}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
            return {} if body.get("stream") else dict(json.loads(content))
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException):
        return None


class Load(threading.Thread):
    """Streamed requests through the router, one every `gap_s`, until `close`; names are PREFIX-1, PREFIX-2, ..."""

    def __init__(self, pair: Pair, prefix: str, gap_s: float = 0.8, lengths: tuple[int, ...] = (200, 400, 800)) -> None:
        super().__init__(name=f"load-{prefix}", daemon=True)
        self._pair, self._prefix, self._gap_s, self._lengths = pair, prefix, gap_s, lengths
        self._stop_asked = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            number += 1
            body = make_body(self._lengths[number % len(self._lengths)], stream=True)
            arguments = (self._pair.router_url, f"{self._prefix}-{number}", body)
            threading.Thread(target=ask, args=arguments, daemon=True).start()
            self._stop_asked.wait(self._gap_s)

    def close(self) -> None:
        self._stop_asked.set()
        self.join()


def prefill_only(pair: Pair, request_id: str, length: int = 400) -> dict[str, Any]:
    """Let P compute a prompt that no decoder asks for; return P's transfer parameters."""
    answer = ask(pair.prefill.url, request_id, make_body(length, 1, kv_transfer_params=REMOTE))
    return dict((answer or {}).get("kv_transfer_params") or {})


def ask_of_gone_peer(pair: Pair, request_id: str, port: int) -> None:
    """Let D fetch from an engine that isn't there."""
    params = {**prefill_only(pair, request_id), "remote_engine_id": "P-gone", "remote_port": port}
    ask(pair.decode.url, request_id, make_body(400, kv_transfer_params=params))


class OpenRequest:
    """A request to D whose answer nobody waits for; `cancel` closes its connection."""

    def __init__(self, pair: Pair, request_id: str, length: int = 400) -> None:
        peer = Peer(pair.prefill.id, pair.prefill.url, HOST, pair.prefill.spec.side_channel_port)
        body = make_body(length, stream=True, kv_transfer_params=push_params(peer, request_id, False))
        self._connection = _connect(pair.decode)
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        self._connection.request("POST", COMPLETIONS, json.dumps(body), headers)

    def cancel(self) -> None:
        with suppress(OSError):
            self._connection.close()


def _connect(engine: Engine) -> http.client.HTTPConnection:
    address = urlsplit(engine.url)
    return http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)

"""Small real collectors: OTLP over HTTP and gRPC with a behaviour that tests switch, and the `rotel` collector.

A span is compared as (trace id, span id, name, attributes), wherever it comes from: a request, or a span file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from lab.ports import pick_free

Key = tuple[str, str, str, frozenset[tuple[str, Any]]]


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Poll a condition; return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def read_request(data: bytes) -> list[Key]:
    """Return the spans of an OTLP protobuf request."""
    request = ExportTraceServiceRequest.FromString(data)
    return [
        (
            span.trace_id.hex(),
            span.span_id.hex(),
            span.name,
            frozenset((pair.key, _read_value(pair.value)) for pair in span.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _read_value(value: AnyValue) -> Any:
    kind = str(value.WhichOneof("value"))
    return tuple(map(_read_value, value.array_value.values)) if kind == "array_value" else getattr(value, kind)


def read_files(directory: Path, instance: str = "") -> list[Key]:
    """Return the spans of all span files of a directory, or of one engine's only."""
    found = []
    for path in sorted(directory.glob("*.otlp.jsonl")):
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                about = dict(map(_read_pair, resource["resource"]["attributes"]))
                if not instance or about["service.instance.id"] == instance:
                    found += [_read_span(span) for scope in resource["scopeSpans"] for span in scope["spans"]]
    return found


def _read_span(span: dict[str, Any]) -> Key:
    pairs = span.get("attributes", [])
    return span["traceId"], span["spanId"], span["name"], frozenset(map(_read_pair, pairs))


def _read_pair(pair: dict[str, Any]) -> tuple[str, Any]:
    return pair["key"], _read_json_value(pair["value"])


def _read_json_value(holder: dict[str, Any]) -> Any:
    ((kind, value),) = holder.items()
    if kind == "arrayValue":
        return tuple(map(_read_json_value, value.get("values", ())))
    return int(value) if kind == "intValue" else value


class Received:
    """What a collector got, and how it behaves: an HTTP status, "hang" (no answer) or seconds before it answers."""

    def __init__(self) -> None:
        self.spans: list[Key] = []
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self.behaviour: int | str | float = 200

    @property
    def delay_s(self) -> float:
        return self.behaviour if isinstance(self.behaviour, float) else 0.0

    @property
    def status(self) -> int:
        return self.behaviour if isinstance(self.behaviour, int) else 200


class HttpCollector(Received):
    """OTLP/HTTP on a loopback port, served by a thread."""

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__()
        [self.port] = pick_free(1)
        self.endpoint = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        self._ssl: ssl.SSLContext | None = None
        if certificate:
            self._ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._ssl.load_cert_chain(certificate)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> HttpCollector:
        self._ready = threading.Event()
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._ssl).start()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _take(self, request: web.Request) -> web.Response:
        data = await request.read()
        self.requests += 1
        self.headers.append(dict(request.headers))
        if self.behaviour == "hang":
            await asyncio.sleep(3600)
        await asyncio.sleep(self.delay_s)
        if self.status == 200:
            self.spans += read_request(data)
        return web.Response(status=self.status, body=ExportTraceServiceResponse().SerializeToString())


# What a gRPC collector answers where an HTTP one has a status.
_CODES = {
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    400: grpc.StatusCode.INVALID_ARGUMENT,
}


class GrpcCollector(Received, TraceServiceServicer):  # type: ignore[misc]
    """OTLP/gRPC on a loopback port."""

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__()
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(self, self._server)
        if certificate:
            pem = certificate.read_bytes()
            port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pem, pem)]))
        else:
            port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"

    def __enter__(self) -> GrpcCollector:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        self.requests += 1
        self.headers.append(dict(context.invocation_metadata()))
        answers = time.monotonic() + (3600 if self.behaviour == "hang" else self.delay_s)
        while time.monotonic() < answers and context.is_active():
            time.sleep(0.02)
        if self.status != 200:
            context.abort(_CODES[self.status], "as the test wants")
        self.spans += read_request(request.SerializeToString())
        return ExportTraceServiceResponse()


def make_certificate(path: Path) -> Path:
    """Write a self-signed certificate of 127.0.0.1 with its key."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"]
    path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return path


class Rotel:
    """The `rotel` collector: takes OTLP over gRPC and HTTP, sends on to an HttpCollector."""

    def __init__(self, sink: HttpCollector, folder: Path) -> None:
        found = find_spec("rotel")
        assert found is not None
        assert found.origin is not None
        self.grpc_port, self.http_port = pick_free(2)
        self._command = [
            str(Path(found.origin).with_name("rotel-agent")), "start",
            "--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc_port}",
            "--otlp-http-endpoint", f"127.0.0.1:{self.http_port}",
            "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", sink.endpoint,
            "--batch-timeout", "50ms", "--pid-file", str(folder / "rotel.pid"), "--log-file", str(folder / "rotel.log"),
        ]  # fmt: skip
        self._log = folder / "rotel.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def grpc_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def __enter__(self) -> Rotel:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until both ports answer."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        assert wait_until(lambda: all(map(_listens, (self.grpc_port, self.http_port)))), self._log.read_text()

    def stop(self) -> None:
        """End it as a service manager would: it sends on what it has."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def pause(self) -> None:
        """Stop its process: connections are accepted by the kernel and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def count_names(keys: Iterable[Key]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key in keys:
        counts[key[2]] = counts.get(key[2], 0) + 1
    return counts

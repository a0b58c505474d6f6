"""A collector that takes OTLP over HTTP and throws it away, or refuses it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collector:
    """Answers 200, or 400 while `refuses` is set; `environment` makes engines export to it beside their files."""

    def __init__(self) -> None:
        self.refuses = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(400 if outer.refuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OTEL_TRACES_EXPORTER": "kvlens,otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

"""A small ClickHouse HTTP server: the documented interface (query, parameters, settings, formats, bodies) over chDB.

It is a real server of the protocol for one client at a time, not a replay: every statement is executed. Not covered:
authentication, sessions, progress headers, clusters.  Usage: http_server.py DIRECTORY PORT_FILE
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from chdb import session

NOT_SETTINGS = {
    "query", "database", "session_id", "query_id", "default_format", "compress", "decompress", "user", "password",
    "enable_http_compression", "wait_end_of_query", "session_timeout", "session_check", "send_progress_in_http_headers",
    "http_headers_progress_interval_ms", "client_protocol_version", "role",
    "cancel_http_readonly_queries_on_client_close",
}  # fmt: skip
INSERT = re.compile(r"^\s*(INSERT\s+INTO\s+.*?)\s+FORMAT\s+(\w+)\s*$", re.I | re.S)
FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*$", re.I)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: session.Session
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def do_GET(self):
        if urlsplit(self.path).path == "/ping":
            return self.answer(200, b"Ok.\n")
        return self.do_POST()

    def do_POST(self):
        options = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.read_body()
        content_type = self.headers.get("Content-Type", "")
        if content_type.startswith("application/x-www-form-urlencoded"):
            options |= dict(parse_qsl(body.decode(), keep_blank_values=True))
            body = b""
        sql = options.get("query", "")
        if not INSERT.match(sql) and body:
            sql, body = f"{sql}\n{body.decode()}".strip(), b""
        with self.lock:
            try:
                data = self.execute(sql, body, options)
            except Exception as error:  # the server's own answer to whatever is wrong with a statement
                return self.answer(400, str(error).encode())
        return self.answer(200, data, {"X-ClickHouse-Format": self.find_format(sql, options)})

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        encoding = self.headers.get("Content-Encoding")
        if encoding and body:
            with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
                body = stream.read()
        return body

    def find_format(self, sql: str, options: dict) -> str:
        found = FORMAT.search(sql)
        return found[1] if found else options.get("default_format", "TabSeparated")

    def execute(self, sql: str, body: bytes, options: dict) -> bytes:
        settings = {
            key: value for key, value in options.items() if key not in NOT_SETTINGS and not key.startswith("param_")
        }
        params = {key.removeprefix("param_"): value for key, value in options.items() if key.startswith("param_")}
        self.engine.query(f"USE `{options.get('database') or 'default'}`")
        applied = []
        try:
            for name, value in settings.items():
                literal = value if value.startswith("{") else "'" + value.replace("'", "\\'") + "'"
                self.engine.query(f"SET {name} = {literal}")
                applied.append(name)
            insert = INSERT.match(sql)
            if insert and body:
                with tempfile.NamedTemporaryFile(suffix=".data") as file:
                    file.write(body)
                    file.flush()
                    self.engine.query(
                        f"{insert[1]} SELECT * FROM {self.describe(file.name, *insert.groups())}", params=params
                    )
                return b""
            return self.engine.query(sql, self.find_format(sql, options), params=params).bytes()
        finally:
            for name in applied:
                self.engine.query(f"SET {name} = DEFAULT")

    def describe(self, path: str, insert: str, kind: str) -> str:
        """Name a body as a table; binary rows carry no types, so they get those of the columns that are inserted."""
        if not kind.startswith("RowBinary"):
            return f"file('{path}', '{kind}')"
        target, columns = re.match(r"INSERT\s+INTO\s+([\w.`\"]+)\s*\((.*)\)", insert.strip(), re.I | re.S).groups()
        types = {}
        for row in self.engine.query(f"DESCRIBE TABLE {target}", "JSONEachRow").bytes().decode().splitlines():
            record = json.loads(row)
            types[record["name"]] = record["type"]
        names = [name.strip().strip('`"') for name in columns.split(",")]
        structure = ", ".join(f"`{name}` {types[name]}" for name in names).replace("'", "\\'")
        return f"file('{path}', '{kind}', '{structure}')"

    def answer(self, status: int, body: bytes, headers: dict | None = None):
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "X-ClickHouse-Timezone": "UTC",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def main(directory: str, port_file: str) -> None:
    Handler.engine = session.Session(directory)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scratch = Path(f"{port_file}.new")
    scratch.write_text(str(server.server_port))
    scratch.rename(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

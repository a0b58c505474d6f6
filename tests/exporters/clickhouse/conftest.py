"""A running HTTP server of the ClickHouse protocol, and runs to load."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.ports import pick_free

sys.path.insert(0, str(Path(__file__).parents[2] / "analysis"))


@pytest.fixture
def server(tmp_path):
    """Start the server; yields host:port."""
    port_file = tmp_path / "port"
    command = [
        sys.executable,
        str(Path(__file__).with_name("http_server.py")),
        str(tmp_path / "server"),
        str(port_file),
    ]
    with subprocess.Popen(command, env=os.environ) as process:
        try:
            while not port_file.exists():
                assert process.poll() is None, "the server ended"
                time.sleep(0.05)
            yield f"127.0.0.1:{port_file.read_text()}"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def collector(server, tmp_path):
    """A real collector (the `rotel` wheel) that writes to the server; yields its OTLP/HTTP endpoint for traces."""
    found = find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("the rotel wheel is not installed")
    ports = pick_free(2)
    command = [
        str(Path(found.origin).with_name("rotel-agent")), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports[0]}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports[1]}", "--exporter", "clickhouse", "--batch-timeout", "50ms",
        "--clickhouse-exporter-endpoint", f"http://{server}", "--clickhouse-exporter-compression", "none",
        "--clickhouse-exporter-async-insert", "false", "--pid-file", str(tmp_path / "rotel.pid"),
        "--log-file", str(tmp_path / "rotel.log"),
    ]  # fmt: skip
    with (tmp_path / "rotel.out").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ports[1]), timeout=1):
                    break
                assert process.poll() is None, (tmp_path / "rotel.out").read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{ports[1]}/v1/traces"
        finally:
            process.terminate()
            process.wait(timeout=30)

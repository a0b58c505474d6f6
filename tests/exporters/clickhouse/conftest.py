"""A running HTTP server of the ClickHouse protocol, and runs to load."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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

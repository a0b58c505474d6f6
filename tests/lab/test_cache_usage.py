"""The sampler asks for one gauge, survives an engine that is gone, and its samples integrate to block-seconds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lab.cache_usage import CacheSampler, integrate_blocks, read_samples

INFO = 'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="101",x="y"} 1.0\n'


class Metrics(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    paths: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.paths.append(self.path)
        text = INFO if "cache_config_info" in self.path else 'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_samples_of_every_engine_that_answers(engine: str, tmp_path: Path) -> None:
    sampler = CacheSampler({"P0": engine, "D0": "http://127.0.0.1:9"}, tmp_path, rate_hz=50)
    sampler.start()
    deadline = time.monotonic() + 10
    while len(read_samples(tmp_path) if (tmp_path / "cache_usage.jsonl").exists() else []) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sampler.stop()
    samples = read_samples(tmp_path)
    assert {sample["engine"] for sample in samples} == {"P0"}
    assert {(sample["usage"], sample["blocks"], sample["total_blocks"]) for sample in samples} == {(0.25, 25, 101)}
    assert [sample["unix_ns"] for sample in samples] == sorted(sample["unix_ns"] for sample in samples)
    # The whole page of an engine is a hundred times as long.
    assert all("name[]=" in path for path in Metrics.paths)
    assert sum("cache_config_info" in path for path in Metrics.paths) == 1


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "cache_usage.jsonl").write_text(json.dumps({"engine": "P0"}) + '\n{"engine')
    assert read_samples(tmp_path) == [{"engine": "P0"}]


def test_block_seconds() -> None:
    samples = [
        {"engine": engine, "unix_ns": int(at * 1e9), "blocks": blocks}
        for at, engine, blocks in [(0, "P0", 10), (0, "D0", 7), (1, "P0", 20), (2.5, "P0", 0), (4, "P0", 5)]
    ]
    assert integrate_blocks(samples, "P0") == pytest.approx(10 * 1 + 20 * 1.5)
    assert integrate_blocks(samples, "P0", end_ns=int(6e9)) == pytest.approx(40 + 5 * 2)
    assert integrate_blocks(samples, "P0", int(0.5e9), int(2e9)) == pytest.approx(10 * 0.5 + 20)
    assert integrate_blocks(samples, "D1") == 0

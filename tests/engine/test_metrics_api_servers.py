"""Several API servers on one engine: each increment is counted once, and each server shows the sum."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scrapes import only_kvlens, read_metrics, scrape, wait_for_agreement

import lab.engine
from lab.engine import EngineSpec
from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine


def test_two_api_servers_count_once(
    start_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, report: Callable[[str], None]
) -> None:  # fmt: skip
    build = lab.engine.build_command

    def build_many(spec: EngineSpec) -> list[str]:
        command = build(spec)
        if spec.role != "decode":
            return command
        serve = str(Path(__file__).with_name("serve_many.py"))
        return [sys.executable, serve, *command[3:], "--api-server-count", "2"]

    monkeypatch.setattr(lab.engine, "build_command", build_many)
    pair = start_pair("pull")
    load = Workload(requests=16, rate=4.0, input_lens=(60,), output_len=4, seed=9, id_prefix="many")
    records = pair.run_workload(load)
    assert [record["error"] for record in records] == [None] * load.requests
    assert wait_for_agreement(pair) == []
    # Whichever server answers shows the sum of both.
    for _ in range(10):
        found = read_metrics(only_kvlens(scrape(pair.decode)))
        assert found["kvlens_remote_loads_total", ("ok",)] == load.requests
    servers = set(re.findall(r"\(\S*?(?:ApiServer|APIServer)_?(\d+) pid", pair.decode.log.read_text()))
    assert servers >= {"0", "1"}, "there were no two servers"
    report(f"two API servers on the decode engine: {load.requests} requests, metrics equal to the spans")
    pair.stop()

"""A forked engine process exports its own spans, and only its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from collectors import HttpCollector, Rotel, read_files, wait_until


def find_pids(traces: Path) -> set[str]:
    """Return `process.pid` of all resources in the span files of a directory."""
    text = "".join(path.read_text() for path in traces.glob("*.otlp.jsonl"))
    return set(re.findall(r'"process.pid","value":{"intValue":"(\d+)"', text))


SCRIPT = Path(__file__).with_name("fork_engine.py")
PEER = "kv_transfer.peer_engine_id"


@pytest.mark.parametrize("moment", ["late", "early"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_forked_process_exports_its_spans(tmp_path: Path, protocol: str, moment: str) -> None:
    with HttpCollector() as sink, Rotel(sink, tmp_path) as rotel:
        endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_endpoint
        done = subprocess.run(
            [sys.executable, str(SCRIPT), moment],
            env={
                **os.environ,
                "KVLENS_TRACES_DIR": str(tmp_path / "traces"),
                "OTEL_TRACES_EXPORTER": "otlp,kvlens",
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # The parent's first three are its own also when it had not exported them before it forked.
        assert wait_until(lambda: len(set(sink.spans)) >= 43), (done.stdout, done.stderr)
        received = set(sink.spans)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert sorted((int(produced), counts) for _, produced, counts in lines) == [
        (number, repr({"otlp": (number, 0, 0), "kvlens": (number, 0, 0)})) for number in (20, 23)
    ], (done.stdout, done.stderr)
    assert set(read_files(tmp_path / "traces")) == received
    by_process = Counter(str(dict(span[3])[PEER]).split("-")[1] for span in received)
    assert find_pids(tmp_path / "traces") == set(by_process)
    assert by_process == {pid: int(produced) for pid, produced, _ in lines}

"""The whole JSON document of a small run, compared with the stored one (KVLENS_UPDATE_SNAPSHOTS=1 writes it anew)."""

import json
import os
from pathlib import Path

from span_builder import EPOCH, MS, Request, World, add_request, pull_times, push_times

SNAPSHOT = Path(__file__).with_name("breakdown.snapshot.json")


def client_record(key, send, first_byte):
    return {"schema": 1, "request_id": key, "status": "ok", "send_unix_ns": send, "first_byte_unix_ns": first_byte}


def build_run(tmp_path):
    """Two modes, a retry, a stock-free killed request, a handshake, two ranks and a client."""
    records = []
    for mode, make in (("pull", pull_times), ("push", push_times)):
        world = World(mode, ranks=2, skews={"prefill": -2 * MS, "decode": 5 * MS})
        for process in (world.router, world.prefill, world.decode):
            process.engine += mode
        for number in range(3):
            times, _ = make(number * 700 * MS, prefill_compute=100 + 20 * number, wire=10, dispatch=25, registration=30)
            key = f"{mode}-{number % 2}"
            size = {"prompt_tokens": [200, 1000, 5000][number], "bytes": 1 << (20 + number)}
            request = Request(key, suffix=f"0000000{number}", **size)
            add_request(world, request, times, slow_rank=1, slow_ns=MS)
            records.append(client_record(key, EPOCH + times.sent, EPOCH + times.first_byte + 40_000))
            if number == 0:
                peer = world.decode if mode == "push" else world.prefill
                world.handshake(world.worker, peer, times.post - 20 * MS, times.post, rank=1)
        dead, _ = make(9000 * MS)
        dead.landed_before = dead.told = dead.d_sched = dead.d_first = dead.first_byte = dead.end = None
        add_request(world, Request(f"{mode}-dead"), dead, dead_decode=True)
        world.write(tmp_path / "run" / "traces")
    manifest = {"schema": 1, "mode": "both", "versions": {"vllm": "0.32.0"}}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    return "".join(json.dumps(record) + "\n" for record in records)


def test_document_equals_the_snapshot(analyse, tmp_path):
    document = analyse(client=build_run(tmp_path))
    found = json.loads(json.dumps(document))
    if os.environ.get("KVLENS_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(SNAPSHOT.read_text())


def test_document_keeps_its_contract(analyse, tmp_path):
    document = analyse(client=build_run(tmp_path))
    assert document["schema"] == 1
    assert document["run"]["versions"] == {"vllm": "0.32.0"}
    required = {
        "request_id", "trace_id", "mode", "ttft_ms", "tpot_ms", "segments", "hidden", "residual_ms", "uncertainty_ms",
        "ttft_source",
    }  # fmt: skip
    assert all(required <= set(row) for row in document["requests"])
    assert len({row["request_id"] for row in document["requests"]}) == len(document["requests"]) == 6
    assert document["summary"]["client"]["matched"] == 6
    assert document["summary"]["client"]["residual_ms"]["p50"] == 0.04
    assert [row["waiting_for"] for row in document["unfinished"]] == ["wire", "wire"]

"""Conversations that move between two decoders, with ordinary prefix caching and vLLM's own failure policy; a kill."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pairs import read_spans
from turns import Played, by_key, count_reasons, number, of_kind, wait_until_empty

from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

RETENTION_S, PAUSE_S, THRESHOLD = 12, 8.0, 16
# P's cache has all of the last prompt's blocks, so a fetch saves the answer and the rest of the prompt.
# Three at a time: two that answer in step would meet the same decoder each turn, as the router takes them in turn.
MOVING = Workload(requests=3, concurrency=3, turns=4, input_lens=(96, 230), turn_tokens=40, output_len=24, seed=31,
                  id_prefix="moving")  # fmt: skip
# One token of answer, of which D computes none, and prompts of whole blocks: nothing is left to fetch.
COVERED = Workload(requests=2, concurrency=1, turns=3, input_lens=(96,), turn_tokens=31, output_len=1, seed=32,
                   id_prefix="covered")  # fmt: skip
PAUSED = Workload(requests=2, concurrency=2, turns=2, input_lens=(120,), turn_tokens=24, output_len=24, seed=33,
                  history=("paused",), pause_s=PAUSE_S, id_prefix="paused")  # fmt: skip
BROKEN = Workload(requests=2, concurrency=1, turns=3, input_lens=(120,), turn_tokens=24, output_len=24, seed=34,
                  id_prefix="broken")  # fmt: skip
KILLED = Workload(requests=4, concurrency=4, turns=2, input_lens=(120,), turn_tokens=24, output_len=120, seed=35,
                  id_prefix="killed")  # fmt: skip
EQUAL = (MOVING, COVERED, PAUSED, BROKEN)
EXPECTED = {"moving": "fetched", "covered": "local_cache_covers", "paused": "expired", "broken": "fetch_failed"}


@pytest.fixture(scope="module")
def pair(start_pair: Callable[..., Pair]) -> Pair:
    extra = {"decoder_kv_blocks_ttl": RETENTION_S, "kv_lease_duration": 6, "kv_recompute_threshold": THRESHOLD}
    return start_pair(
        "bidirectional", decoders=2, prefix_caching=True, extra_config=extra, conversations={"sticky": False}
    )


@pytest.fixture(scope="module")
def played(pair: Pair) -> Played:
    run = Played()
    pair.warm_up((120,))
    for workload in (MOVING, COVERED, PAUSED):
        run.send(pair, workload)
    pair.set_faults({"transfer_error": {"ms": 1, "engine": "prefill"}})
    time.sleep(0.1)
    run.send(pair, BROKEN)
    pair.clear_faults()
    run.empty_ns = wait_until_empty(pair)
    run.make_references(pair, [workload.id_prefix for workload in EQUAL])
    killer = threading.Timer(3.0, pair.engines[2].kill)
    killer.start()
    run.send(pair, KILLED)
    killer.join()
    # What the killed decoder never read expires on P, and the other decoder's blocks too.
    wait_until_empty(pair, engines=("P0", "D0"))
    pair.stop()
    return run


@pytest.fixture(scope="module")
def spans(pair: Pair, played: Played) -> list[dict[str, Any]]:
    return read_spans(pair.out)


def test_tokens_are_those_of_a_single_engine(played: Played) -> None:
    for workload in EQUAL:
        for record in played.records[workload.id_prefix]:
            assert record["error"] is None, record
            assert record["tokens"] == played.references[record["request_id"]], record["request_id"]


def test_reasons_with_a_prefix_cache_and_the_stock_failure_policy(
    played: Played, spans: list[dict[str, Any]], report: Callable[[str], None]
) -> None:
    decisions = of_kind(spans, "decision", "prefill")
    found = by_key(decisions)
    wrong = {}
    for name, reason in EXPECTED.items():
        for record in played.records[name]:
            want = reason if record["turn"] else "no_remote_metadata"
            if (seen := found[record["request_id"]]["reason"]) != want:
                wrong[record["request_id"]] = (seen, want)
    assert not wrong, wrong
    report(f"moving between two decoders: decisions by reason: {dict(count_reasons(decisions))}")


def test_failed_reads_are_sent_again_without_an_offer(played: Played, spans: list[dict[str, Any]]) -> None:
    legs = Counter(str(span["request_key"]) for span in of_kind(spans, "router.prefill"))
    for name in ("paused", "broken"):
        for record in played.records[name]:
            assert legs[record["request_id"]] == (2 if record["turn"] else 1)


def test_conversations_move_and_their_blocks_are_read_from_where_they_are(
    played: Played, spans: list[dict[str, Any]]
) -> None:
    decisions, decodes = by_key(of_kind(spans, "decision")), by_key(of_kind(spans, "decode", "decode"))
    moved = 0
    for record in played.records[MOVING.id_prefix]:
        if record["turn"]:
            earlier = decodes[f"{record['request_id'][:-1]}{record['turn'] - 1}"]
            assert decisions[record["request_id"]]["peer_engine_id"] == earlier["engine"]
            moved += decodes[record["request_id"]]["engine"] != earlier["engine"]
    assert moved > 0


def test_every_lease_ends_also_when_a_decoder_is_killed(
    pair: Pair, played: Played, spans: list[dict[str, Any]], report: Callable[[str], None]
) -> None:
    failed = [record for record in played.records[KILLED.id_prefix] if record["error"]]
    assert failed
    leases = [span for span in spans if span["name"] == "lease" and span["engine"] != "D1"]
    ends = Counter((str(span["engine"]), str(span["reason"]), str(span["outcome"])) for span in leases)
    report(f"moving, one decoder killed: leases by engine, reason, outcome: {dict(sorted(ends.items()))}")
    assert not [span for span in leases if span["outcome"] == "unknown"]
    done = {span["request_id"] for span in of_kind(spans, "prefill", "prefill")
            if span["finish_reason"] == "finished_length_capped"}  # fmt: skip
    kept = {span["request_id"] for span in leases if span["reason"] == "finished_awaiting_transfer"}
    assert done <= kept
    assert all(number(span, "blocks") > 0 for span in leases)

"""Whole conversations on a real pair: tokens, what P decided and why, wrong prefixes, and what both engines held."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pairs import read_spans
from scrapes import read_metrics, scrape
from turns import Played, by_key, count_reasons, of_kind, post, wait_until_empty

from analysis.reuse.leases import report_leases
from analysis.reuse.usage import compare_usage, read_usage
from analysis.source import open_session
from instrumented_connectors.metrics import catalogue as table
from lab.cache_usage import FILE as CACHE_USAGE_FILE
from lab.history import CHANGED
from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

# vLLM reads nothing in the last 5 s: turns have 7 s to follow, and a pause of 8 s is too long.
RETENTION_S, PAUSE_S = 12, 8.0
THRESHOLD = 64

# 26 conversations of five turns: 104 sound turns that continue one.
SOUND = Workload(
    requests=26, concurrency=3, turns=5, input_lens=(66, 90, 160, 300), turn_tokens=24, output_len=4, seed=21,
    id_prefix="sound",
)  # fmt: skip
WHOLE = Workload(requests=2, concurrency=2, turns=4, input_lens=(150,), turn_tokens=40, output_len=4, seed=22,
                 stream=False, id_prefix="whole", conversation_via="baggage")  # fmt: skip
WRONG = Workload(requests=7, concurrency=4, turns=4, input_lens=(100, 180), turn_tokens=24, output_len=24, seed=23,
                 history=("edited", "stripped", "fresh"), id_prefix="wrong")  # fmt: skip
SMALL = Workload(requests=2, concurrency=2, turns=4, input_lens=(20,), turn_tokens=8, output_len=4, seed=24,
                 id_prefix="small", conversation_via="header")  # fmt: skip
PAUSED = Workload(requests=3, concurrency=3, turns=3, input_lens=(120,), turn_tokens=24, output_len=4, seed=25,
                  history=("paused", "sound"), pause_s=PAUSE_S, id_prefix="paused")  # fmt: skip
LOST = Workload(requests=2, concurrency=2, turns=3, input_lens=(120,), turn_tokens=24, output_len=4, seed=26,
                history=("lost",), id_prefix="lost")  # fmt: skip
BROKEN = Workload(requests=2, concurrency=1, turns=4, input_lens=(120,), turn_tokens=24, output_len=4, seed=27,
                  id_prefix="broken")  # fmt: skip
EQUAL = (SOUND, WHOLE, SMALL, PAUSED, LOST, BROKEN)


# What a sound router never sends -> the decision's reason, and the validation's where there must be one.
DIRECT: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "no-port": ({"remote_port": ...}, "incomplete_metadata", "missing_field"),
    "no-tokens": ({"remote_num_tokens": 0}, "nothing_to_fetch", None),
    "nobody": ({"remote_engine_id": "D9", "remote_port": 1}, "remote_unknown", None),
    "foreign": ({"remote_engine_id": "D8"}, "remote_unknown", "foreign_engine"),
    "negative": ({"remote_blocks_expiry_time": -5.0}, "expired", "negative_expiry"),
    "jump": ({"remote_blocks_expiry_time": 1e12}, "fetched", "clock_jump"),
    "logprobs": ({}, "disabled", None),
}


def ask_p_directly(pair: Pair) -> None:
    """Send P the offers of DIRECT, without a router."""
    sound = {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": "D0", "remote_request_id": "cmpl-x-0",
        "remote_host": "127.0.0.1", "remote_port": pair.decode.spec.side_channel_port, "remote_block_ids": [[1, 2, 3]],
        "remote_num_tokens": 96, "tp_size": 1,
    }  # fmt: skip
    for name, (changes, _, _) in DIRECT.items():
        # An id of its own each time: blocks that were offered before are stale, which is another finding.
        offer = {**sound, "remote_request_id": f"cmpl-{name}-0", **changes}
        params = {key: value for key, value in offer.items() if value is not ...}
        body = {"prompt": list(range(100, 228)), "max_tokens": 1, "temperature": 0, "kv_transfer_params": params}
        if name == "logprobs":
            # Such a request skips the prefix cache, and with it what comes from outside.
            body["prompt_logprobs"] = 1
        assert post(pair.prefill.url, body, X_Request_Id=f"direct-{name}")[0] == 200, name


def leave_during_readback(pair: Pair) -> None:
    """Be a client that leaves while P reads the earlier turn back."""
    body = {"prompt": list(range(100, 300)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    told = {**body, "return_token_ids": True}
    status, answer = post(pair.router_url, told, X_Request_Id="left-t0", X_Conversation_Id="left")
    assert status == 200
    pair.set_faults({"wire": {"ms": 2500, "engine": "prefill"}})
    time.sleep(0.1)
    longer = {**body, "prompt": [*body["prompt"], *answer["choices"][0]["token_ids"], *range(300, 340)]}
    assert post(pair.router_url, longer, 0.8, X_Request_Id="left-t1", X_Conversation_Id="left")[0] == 0
    time.sleep(3.0)
    pair.clear_faults()


@pytest.fixture(scope="module")
def pair(start_pair: Callable[..., Pair]) -> Iterator[Pair]:
    extra = {"decoder_kv_blocks_ttl": RETENTION_S, "kv_lease_duration": 6, "kv_recompute_threshold": THRESHOLD}
    return start_pair("bidirectional", extra_config=extra, load_failure_policy="recompute")


@pytest.fixture(scope="module")
def played(pair: Pair) -> Played:
    """Everything that is sent to the pair, then the references, then the end: the spans are complete."""
    run = Played()
    pair.warm_up((120,))
    for workload in (SOUND, WHOLE, WRONG, SMALL, PAUSED, LOST):
        run.send(pair, workload)
    pair.set_faults({"transfer_error": {"ms": 1, "engine": "prefill"}})
    time.sleep(0.1)
    run.send(pair, BROKEN)
    pair.clear_faults()
    leave_during_readback(pair)
    ask_p_directly(pair)
    run.empty_ns = wait_until_empty(pair)
    run.make_references(pair, [workload.id_prefix for workload in (*EQUAL, WRONG)])
    run.metrics = read_metrics(scrape(pair.prefill))
    pair.stop()
    return run


@pytest.fixture(scope="module")
def spans(pair: Pair, played: Played) -> list[dict[str, Any]]:
    return read_spans(pair.out)


def expected_reason(record: dict[str, Any], name: str) -> str:
    """Return the reason that follows from what the client did and the router knew."""
    if record["planned"] in ("first", "lost"):
        return "no_remote_metadata"
    if record["planned"] == "paused":
        return "expired"
    if name == BROKEN.id_prefix:
        return "fetch_failed_recomputed"
    return "fetched" if min(record["held_tokens"], record["prompt_tokens"]) >= THRESHOLD else "below_threshold"


def test_tokens_are_those_of_a_single_engine(played: Played, report: Callable[[str], None]) -> None:
    compared = Counter[str]()
    for workload in EQUAL:
        for record in played.records[workload.id_prefix]:
            assert record["error"] is None, record
            assert record["tokens"] == played.references[record["request_id"]], record["request_id"]
            compared[workload.id_prefix] += 1
    report(f"bidirectional: tokens equal to one engine's: {dict(compared)} turns")


def test_every_decision_has_the_reason_that_follows_from_what_was_sent(
    played: Played, spans: list[dict[str, Any]], report: Callable[[str], None]
) -> None:
    decisions = of_kind(spans, "decision", "prefill")
    found = by_key(decisions)
    wrong = {}
    for name, records in played.records.items():
        for record in records:
            reason = found[record["request_id"]]["reason"] if record["request_id"] in found else "no decision"
            if reason != (want := expected_reason(record, name)):
                wrong[record["request_id"]] = (reason, want)
    assert not wrong, wrong
    assert {name: found[f"direct-{name}"]["reason"] for name in DIRECT} == {
        name: reason for name, (_, reason, _) in DIRECT.items()
    }
    assert found["left-t1"]["reason"] == "aborted"
    # One decision per request, however often the scheduler asked.
    assert len(decisions) == len({span["request_id"] for span in decisions})
    report(f"bidirectional: decisions by reason: {dict(count_reasons(decisions))}")


def test_bad_offers_are_named_and_served(spans: list[dict[str, Any]]) -> None:
    named = {
        str(span["request_key"]): span["reason"]
        for span in of_kind(spans, "validation", "prefill")
        if span["reason"] != "prefix_mismatch"
    }
    assert named == {f"direct-{name}": reason for name, (_, _, reason) in DIRECT.items() if reason}


def test_counts_are_those_that_the_router_knows(played: Played, spans: list[dict[str, Any]]) -> None:
    routed = of_kind(spans, "router.request")
    offers = Counter(str(span["readback_offered"]) for span in routed)
    decisions = by_key(of_kind(spans, "decision", "prefill"))
    reasons = count_reasons([span for key, span in decisions.items() if not key.startswith("direct-")])
    assert offers["first_turn"] + offers["lost"] == reasons["no_remote_metadata"]
    assert offers["stale"] == reasons["expired"] == PAUSED.requests
    assert offers["offered"] == sum(reasons.values()) - reasons["no_remote_metadata"] - reasons["expired"]
    turns = {str(span["request_key"]): span for span in routed}
    for record in played.all_records():
        span = turns[record["request_id"]]
        assert (span["conversation_id"], int(span["turn"])) == (record["conversation_id"], record["turn"])


@pytest.mark.parametrize(("metric", "name"), [(table.DECISIONS, "decision"), (table.VALIDATIONS, "validation")])
def test_metrics_count_what_the_spans_tell(
    played: Played, spans: list[dict[str, Any]], metric: table.Metric, name: str
) -> None:
    counted = {labels[0]: count for (of, labels), count in played.metrics.items() if of == metric.name and count}
    told = count_reasons([span for span in spans if span["name"] == name and span["role"] == "prefill"])
    assert told
    assert counted == dict(told)


def test_link_to_the_earlier_turn_is_its_decode_request(played: Played, spans: list[dict[str, Any]]) -> None:
    decisions, decodes = by_key(of_kind(spans, "decision")), by_key(of_kind(spans, "decode", "decode"))
    for record in played.records[SOUND.id_prefix]:
        if record["turn"]:
            earlier = f"{record['request_id'][:-1]}{record['turn'] - 1}"
            assert decisions[record["request_id"]]["peer_request_id"] == decodes[earlier]["request_id"]


def test_wrong_prefixes_are_named_before_the_first_token(
    played: Played, spans: list[dict[str, Any]], report: Callable[[str], None]
) -> None:
    decisions = by_key(of_kind(spans, "decision", "prefill"))
    named = by_key([span for span in of_kind(spans, "validation") if span["reason"] == "prefix_mismatch"])
    records = played.all_records()
    changed = {record["request_id"] for record in records if record["planned"] in CHANGED}
    sound = {record["request_id"] for record in records if record["turn"] and record["planned"] in ("sound", "paused")}
    assert len(changed) >= 20
    assert len(sound) >= 100
    assert set(named) & sound == set()
    assert set(named) == changed
    for record in records:
        if record["request_id"] in changed:
            assert named[record["request_id"]]["begin"] < record["first_byte_unix_ns"]
            span = decisions[record["request_id"]]
            assert span["prefix_match"] == "no"
            assert int(span["prefix_mismatch_block"]) == record["common_tokens"] // 32
    assert {decisions[key]["prefix_match"] for key in sound if decisions[key]["decision"] == "fetch"} == {"yes"}
    # The trap: the engines answer all of them, most with other tokens than the prompt's own.
    bad = [record for record in records if record["request_id"] in changed]
    other = sum(record["tokens"] != played.references[record["request_id"]] for record in bad)
    assert {record["status"] for record in bad} == {"ok"}
    report(
        f"bidirectional: {len(set(named) & changed)} of {len(changed)} wrong prefixes named before the first token, "
        f"{len(set(named) & sound)} of {len(sound)} sound ones; {other} of {len(bad)} wrong ones answered other tokens"
    )


def test_ledger_balances(
    pair: Pair, played: Played, spans: list[dict[str, Any]], report: Callable[[str], None]
) -> None:
    # vLLM itself says that nothing is in use at the end (wait_until_empty); each lease has an end of a known kind.
    leases = [span for span in spans if span["name"] == "lease"]
    ends = Counter((str(span["role"]), str(span["reason"]), str(span["outcome"])) for span in leases)
    report(f"bidirectional: leases by role, reason, outcome: {dict(sorted(ends.items()))}")
    assert not [span for span in leases if span["outcome"] == "unknown"]
    requests = of_kind(spans, "prefill", "prefill")
    done = [span for span in requests if span["finish_reason"] == "finished_length_capped"]
    kept = [span for span in of_kind(spans, "lease", "prefill") if span["reason"] == "finished_awaiting_transfer"]
    assert {span["request_id"] for span in kept} == {span["request_id"] for span in done}
    with open_session([pair.out]) as session:
        holdings = report_leases(session).holdings
    # Afterwards the engines answer for themselves, of which the prefill engine makes no spans.
    usage, bad = read_usage(pair.out / CACHE_USAGE_FILE)
    compared = {
        entry["engine"]: entry for entry in compare_usage(holdings, usage.filter(usage["unix_ns"] <= played.empty_ns))
    }
    assert bad == 0
    assert set(compared) == {engine.id for engine in pair.engines}
    for engine, entry in compared.items():
        report(
            f"bidirectional: {engine} held {entry['ledger_block_s']:.1f} block-seconds by the ledger, "
            f"{entry['measured_block_s']:.1f} by vLLM's block pool ({entry['difference']:+.2%})"
        )
        # Within 5 % was asked for; scheduling and a few hooks lie between the two, no sampling does.
        assert abs(entry["difference"]) < 0.02

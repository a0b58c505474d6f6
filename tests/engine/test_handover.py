"""Both modes on one real pair each: tokens, conservation, identity, ground truth, a killed decoder."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pairs import (
    budgets_of,
    median_of,
    percentile,
    read_document,
    read_spans,
    references,
    tokens_of,
    wait_for_document,
)

from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

MIXED = Workload(requests=40, concurrency=4, input_lens=(48, 200, 700, 1500), output_len=8, seed=3, id_prefix="mixed")
STEADY = Workload(requests=60, concurrency=1, input_lens=(64, 300), output_len=4, seed=4, id_prefix="steady")
DELAY_MS = 250.0
TURNS, PER_TURN = 2, 3


@pytest.fixture(scope="module")
def pair(shared_pair: Pair) -> Pair:
    return shared_pair


@pytest.fixture(scope="module")
def mixed(pair: Pair) -> list[dict[str, Any]]:
    return pair.run_workload(MIXED)


@pytest.fixture(scope="module")
def budgets(pair: Pair, mixed: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(client record, budget) of 100 requests."""
    records = [*mixed, *pair.run_workload(STEADY)]
    return list(zip(records, budgets_of(pair, records), strict=True))


def test_tokens_are_those_of_a_single_engine(pair: Pair, mixed: list[dict[str, Any]]) -> None:
    assert [record["error"] for record in mixed] == [None] * MIXED.requests
    assert tokens_of(mixed) == references(pair, MIXED)


def test_segments_and_residual_are_the_ttft(budgets: list[Any]) -> None:
    for _, budget in budgets:
        charged = [value for value in budget["segments"].values() if value is not None]
        assert min(charged) >= 0
        assert min((value for value in budget["hidden"].values() if value is not None), default=0) >= 0
        assert sum(charged) + budget["residual_ms"] == pytest.approx(budget["ttft_ms"], abs=1e-3)
        assert budget["ttft_source"] == "router"
        assert budget["missing"] == []


def test_the_budget_is_what_the_client_measured(pair: Pair, budgets: list[Any], report: Callable[[str], None]) -> None:
    gaps, excess = [], []
    for record, budget in budgets:
        charged = sum(value for value in budget["segments"].values() if value is not None)
        gap = abs(record["ttft_ms"] - charged)
        gaps.append(gap)
        excess.append(gap - max(0.01 * record["ttft_ms"], 2.0))
    report(
        f"{pair.mode}: |client TTFT - charged segments|, {len(gaps)} requests: p50 {percentile(gaps, 0.5):.2f} ms, "
        f"p99 {percentile(gaps, 0.99):.2f} ms, max {max(gaps):.2f} ms; median TTFT "
        f"{statistics.median(record['ttft_ms'] for record, _ in budgets):.0f} ms"
    )
    assert percentile(excess, 0.99) <= 0


def test_every_trace_joins_both_engines(pair: Pair, report: Callable[[str], None]) -> None:
    plain = Workload(requests=4, concurrency=2, input_lens=(64,), output_len=3, seed=11, id_prefix="plain")
    parented = Workload(
        requests=4, concurrency=2, input_lens=(64,), output_len=3, seed=12, id_prefix="parented", traceparent=True
    )
    # The client's own ids, one of them used three times as a retrying client does, one that looks like vLLM's own.
    ids = ("same-id", "same-id", "same-id", "x-deadbeef", "cmpl-y-0-0123abcd", "ünï/코드 id")
    own = Workload(requests=6, concurrency=1, input_lens=(64,), output_len=3, seed=13, request_ids=ids)
    chat = Workload(requests=2, concurrency=1, input_lens=(30,), output_len=3, seed=14, id_prefix="chat", chat=True)
    records = [record for load in (plain, parented, own, chat) for record in pair.run_workload(load)]
    assert [record["error"] for record in records] == [None] * len(records)
    keys = {record["request_id"] for record in records}

    def joined(document: dict[str, Any]) -> bool:
        rows = [row for row in document["requests"] if row["request_key"] in keys]
        return len(rows) == len(records) and not any(row["missing"] for row in rows)

    document = wait_for_document(pair.out, joined)
    rows = [row for row in document["requests"] if row["request_key"] in keys]
    assert len(rows) == len(records)
    assert all(row["missing"] == [] and row["ttft_source"] == "router" for row in rows)
    assert len({row["decode_request_id"] for row in rows}) == len(records)

    spans = read_spans(pair.out)
    traces = {span["request_id"]: span["trace"] for span in spans if span.get("request_id")}
    together = [traces[row["prefill_request_id"]] == traces[row["decode_request_id"]] for row in rows]
    report(f"{pair.mode}: P and D in one trace for {sum(together)} of {len(together)} requests")
    assert all(together)
    # With a traceparent the trace is the client's own.
    sent = {record["trace_id"] for record in records if record["trace_id"]}
    assert {row["trace_id"] for row in rows if row["request_key"].startswith("parented")} == sent


def test_several_choices_do_not_collide(pair: Pair) -> None:
    sampled = {"n": 2, "temperature": 1.0, "seed": 1}
    load = Workload(requests=1, input_lens=(64,), output_len=3, seed=15, id_prefix="choices", extra_body=sampled)
    record = pair.run_workload(load)[0]
    assert record["error"] is None

    def children() -> list[dict[str, Any]]:
        return [s for s in read_spans(pair.out) if s.get("request_key") == record["request_id"]]

    deadline = time.monotonic() + 15
    while sum(span["name"] == "decode" for span in children()) < 2 and time.monotonic() < deadline:
        time.sleep(1)
    decodes = [span for span in children() if span["name"] == "decode"]
    assert len({span["request_id"] for span in decodes}) == len(decodes)
    assert len({span["trace"] for span in children()}) == 1


def faulted(pair: Pair, faults: dict[str, Any], base: dict[str, Any], name: str, length: int) -> tuple[Any, Any]:
    """Alternate a few requests without and with a fault; return both sets of budgets."""
    plain: list[Any] = []
    delayed: list[Any] = []
    for turn in range(TURNS):
        for kind, on, rows in (("a", base, plain), ("b", {**base, **faults}, delayed)):
            pair.set_faults(on)
            # The sites look at the file at most every 10 ms.
            time.sleep(0.1)
            load = Workload(
                requests=PER_TURN, input_lens=(length,), output_len=3, seed=100 + turn, id_prefix=f"{name}-{kind}{turn}"
            )
            rows.extend(pair.run_workload(load))
    pair.clear_faults()
    assert not [record["error"] for record in plain + delayed if record["error"]]
    found = budgets_of(pair, plain + delayed)
    return found[: TURNS * PER_TURN], found[TURNS * PER_TURN :]


# site -> segment that must be charged; `base` keeps D's branch of a push on the critical path in both sets of requests.
D_LATE = {"router_decode_leg": 400.0}
GROUND_TRUTH: list[tuple[str, str, str, dict[str, float]]] = [
    ("pull", "prefill_compute", "prefill_compute", {}),
    ("pull", "router_dispatch", "handoff_dispatch", {}),
    ("pull", "decode_admission", "decode_admission", {}),
    ("pull", "dispatch", "dispatch", {}),
    ("pull", "post", "post", {}),
    ("pull", "wire", "wire", {}),
    ("pull", "completion", "completion_lag", {}),
    ("pull", "first_decode", "first_decode", {}),
    ("push", "prefill_compute", "prefill_compute", {}),
    ("push", "router_dispatch", "route", {}),
    ("push", "decode_admission", "decode_admission", D_LATE),
    ("push", "registration", "registration", D_LATE),
    ("push", "router_decode_leg", "pairing", D_LATE),
    ("push", "dispatch", "dispatch", {}),
    ("push", "post", "post", {}),
    ("push", "wire", "wire", {}),
    ("push", "completion", "completion_lag", {}),
    ("push", "first_decode", "first_decode", {}),
]


@pytest.mark.parametrize("truth", GROUND_TRUTH, ids=lambda truth: f"{truth[0]}-{truth[1]}")
def test_a_known_delay_is_charged_where_it_was_put(
    pair: Pair, truth: tuple[str, str, str, dict[str, float]], report: Callable[[str], None]
) -> None:
    mode, site, segment, base = truth
    if mode != pair.mode:
        pytest.skip("belongs to the other mode")
    delay = DELAY_MS + base.get(site, 0.0)
    plain, delayed = faulted(pair, {site: delay}, base, f"truth-{site}", length=64)
    tolerance = max(0.1 * DELAY_MS, 5.0)
    names = {name for row in plain + delayed for name in row["segments"]}
    moved = {n: median_of(delayed, "segments", n) - median_of(plain, "segments", n) for n in names}
    others = {name: round(change, 1) for name, change in moved.items() if name != segment}
    worst = max(others, key=lambda name: abs(others[name]))
    report(
        f"{mode}: {DELAY_MS:.0f} ms at {site} -> {segment} {moved[segment]:+.1f} ms; "
        f"largest other change {worst} {others[worst]:+.1f} ms"
    )
    assert moved[segment] == pytest.approx(DELAY_MS, abs=tolerance)
    assert abs(others[worst]) <= tolerance


def test_a_delay_off_the_critical_path_is_hidden(pair: Pair, report: Callable[[str], None]) -> None:
    if pair.mode != "push":
        pytest.skip("pull has one branch only")
    # P computes for longer than D's admission is delayed: nobody's first token comes later for it.
    base = {"prefill_compute": 3 * DELAY_MS}
    plain, delayed = faulted(pair, {"decode_admission": DELAY_MS}, base, "hidden", length=64)
    hidden = median_of(delayed, "hidden", "decode_admission") - median_of(plain, "hidden", "decode_admission")
    moved = {
        name: median_of(delayed, "segments", name) - median_of(plain, "segments", name)
        for name in {name for row in plain + delayed for name in row["segments"]}
    }
    worst = max(moved, key=lambda name: abs(moved[name]))
    report(
        f"push: {DELAY_MS:.0f} ms at decode_admission while P computes -> hidden {hidden:+.1f} ms, charged "
        f"{moved['decode_admission']:+.1f} ms; largest change of a charged segment {worst} {moved[worst]:+.1f} ms"
    )
    tolerance = max(0.1 * DELAY_MS, 5.0)
    assert hidden == pytest.approx(DELAY_MS, abs=tolerance)
    assert abs(moved[worst]) <= tolerance


def test_zz_a_killed_decoder_leaves_a_readable_run(pair: Pair, report: Callable[[str], None]) -> None:
    load = Workload(requests=6, concurrency=6, input_lens=(1500,), output_len=200, seed=21, id_prefix="killed")
    result: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: result.extend(pair.run_workload(load)))
    sender.start()
    deadline = time.monotonic() + 60
    # Some requests decode, others still wait for P.
    while time.monotonic() < deadline:
        time.sleep(0.5)
        begun = {s["request_id"] for s in read_spans(pair.out) if s["name"] == "decode.first_step"
                 and s.get("request_key", "").startswith("killed")}  # fmt: skip
        if begun:
            break
    pair.decode.kill()
    sender.join(timeout=120)
    assert not sender.is_alive()
    assert all(record["status"] == "error" for record in result)
    time.sleep(3)
    document = read_document(pair.out)
    lost = [row for row in document["unfinished"] if row["request_id"].startswith(("killed", "cmpl-killed"))]
    waits = sorted({row["waiting_for"] for row in lost})
    report(f"{pair.mode}: D killed with {load.requests} in flight -> {len(lost)} unfinished, waiting for {waits}")
    assert len(lost) == load.requests
    assert all(row["waiting_for"] for row in lost)

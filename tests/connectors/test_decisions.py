"""The decision span: one per request on P, with its grounds, what came of it, and what it cost against the rest."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import MS, Sink, build_scheduler, make_factory
from metric_processes import Process, cross, make_output

from instrumented_connectors import decide
from instrumented_connectors.decide import Decision, Policy
from instrumented_connectors.decisions import Pending
from instrumented_connectors.estimates import CostModel, Estimate, fit
from instrumented_connectors.events import (
    ALLOC,
    ARRIVE,
    FAILURE,
    FINISH,
    HANDSHAKE,
    LOAD,
    MATCH,
    OFFER,
    PEERS,
    PREP,
    READ_CHECK,
    RESULTS,
    STEP,
    TOLD,
)  # fmt: skip
from instrumented_connectors.identity import derive_trace_id
from instrumented_connectors.limited_log import LimitedWarning
from instrumented_connectors.offers import FIELDS, MISSING
from instrumented_connectors.prefix_digest import describe_prefix, make_key
from instrumented_connectors.request_state import RequestState

P_ID, EARLIER = "cmpl-turn2-0-aaaaaaaa", "cmpl-turn1-0-bbbbbbbb"
LENGTH = "finished_length_capped"
NONE: frozenset[str] = frozenset()

OFFERED = {
    "remote_engine_id": "D0", "remote_request_id": EARLIER, "remote_host": "127.0.0.1", "remote_port": 5600,
    "remote_block_ids": [[1, 2, 3, 4, 5, 6, 7, 8]], "remote_num_tokens": 256, "remote_blocks_expiry_time": 100.0,
    "tp_size": 1,
}  # fmt: skip
NOTHING = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))


def values(params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(params.get(name, MISSING) for name in FIELDS)


class Engine:
    """P's scheduler half: the real builders, fed with milliseconds."""

    def __init__(self, *, is_on: bool = True, threshold: int = 64, limit: int = 100) -> None:
        self.sink = Sink()
        mode = "bidirectional" if is_on else "pull"
        self.scheduler = build_scheduler(make_factory(self.sink, "P0"), limit=limit, mode=mode)
        self.decisions = self.scheduler._decisions
        self.decisions.policy = Policy(is_on, threshold)

    def feed(self, *recorded: tuple[Any, ...]) -> None:
        for code, at, *rest in recorded:
            for builder in (self.decisions, self.scheduler):
                if code in builder.handlers:
                    builder.handlers[code]((code, round(at * MS), *rest))

    @property
    def decision(self) -> dict[str, Any]:
        (span,) = self.sink.named("decision")
        return span


def arrive(params: dict[str, Any], at: float = 0, request_id: str = P_ID, tokens: int = 300) -> list[tuple[Any, ...]]:
    engine, request = params.get("remote_engine_id"), params.get("remote_request_id")
    return [
        (ARRIVE, at, request_id, tokens, True, False, engine, request, None),
        (OFFER, at, request_id, True, values(params)),
    ]


def schedule(  # noqa: PLR0917
    local: int = 0, external: int = 0, computed: int | None = None, at: float = 0, request_id: str = P_ID,
    tokens: int = 300, ms: float = 100, fetch_ms: float = 18, failed: bool = False,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Considered twice, allocated at 2 ms, told `fetch_ms` later, computed in `ms`."""
    already = local + external if computed is None else computed
    recorded: list[tuple[Any, ...]] = [
        (MATCH, at + 1, request_id, local, external), (MATCH, at + 2, request_id, local, external),
        (ALLOC, at + 2, request_id, external, 8),
    ]  # fmt: skip
    start = at + 3
    if external:
        start = at + 2 + fetch_ms
        recorded.append((TOLD, start, (request_id,), (), frozenset({request_id}) if failed else NONE))
        recorded.append((MATCH, start, request_id, local, external))
        recorded.append((ALLOC, start, request_id, 0, 10))
    new = SimpleNamespace(req_id=request_id, num_computed_tokens=already)
    recorded.append((STEP, start, {request_id: tokens - already}, [new]))
    recorded.append((FINISH, start + ms, request_id, LENGTH, tokens, 1, 10, True))
    return recorded


def test_a_fetch_is_one_decision_with_its_grounds_however_often_the_scheduler_asks() -> None:
    engine = Engine()
    engine.feed((PEERS, 0, [{"D0": (40_000_000_000, 1000)}]), *arrive(OFFERED), *schedule(external=256))
    span = engine.decision
    assert span == {
        "name": "decision", "start": 0, "end": 2, "trace": derive_trace_id("turn2"), "span": span["span"],
        "parent": engine.sink.named("prefill")[0]["span"], "error": False, "links": [],
        "decision": "fetch", "reason": "fetched", "prompt_tokens": 300, "remote_tokens": 256, "local_tokens": 0,
        "fetch_tokens": 256, "threshold": 64, "seconds_to_expiry": pytest.approx(59.998), "peer_engine_id": "D0",
        "peer_request_id": EARLIER, "fetch_ns": 18 * MS, "prefix_match": "unknown", "prefix_blocks": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("params", "scheduled", "decision", "reason", "saved"),
    [
        (NOTHING, {}, "none", "no_remote_metadata", None),
        ({**OFFERED, "remote_block_ids": []}, {}, "none", "no_remote_metadata", None),
        ({**OFFERED, "remote_num_tokens": 40}, {}, "recompute", "below_threshold", 40),
        ({**OFFERED, "remote_num_tokens": 63}, {}, "recompute", "below_threshold", 63),
        # From the threshold on vLLM fetches: what is not fetched then was ruled out by the request.
        ({**OFFERED, "remote_num_tokens": 64}, {}, "none", "disabled", 64),
        ({**OFFERED, "remote_num_tokens": 300}, {"local": 256}, "recompute", "below_threshold", 44),
        (OFFERED, {"local": 256}, "local", "local_cache_covers", 0),
        ({**OFFERED, "remote_num_tokens": 0}, {}, "none", "nothing_to_fetch", 0),
        ({k: v for k, v in OFFERED.items() if k != "remote_host"}, {}, "none", "incomplete_metadata", 256),
        ({k: v for k, v in OFFERED.items() if k != "remote_num_tokens"}, {}, "none", "incomplete_metadata", None),
    ],
)  # fmt: skip
def test_why_nothing_is_fetched(
    params: dict[str, Any], scheduled: dict[str, int], decision: str, reason: str, saved: int | None
) -> None:
    engine = Engine()
    engine.feed(*arrive(params), *schedule(**scheduled))
    span = engine.decision
    assert (span["decision"], span["reason"], span.get("fetch_tokens")) == (decision, reason, saved)
    assert "regret_ns" not in span
    # 300 prompt tokens in 100 ms; the local ones were not computed.
    share = 100 * MS * (saved or 0) // (300 - scheduled.get("local", 0))
    assert span.get("recompute_ns", 0) == (pytest.approx(share, abs=1) if decision == "recompute" else 0)


def test_an_engine_that_does_not_read_back_says_so_at_once_and_only_when_it_is_offered_something() -> None:
    engine = Engine(is_on=False)
    engine.feed(*arrive(NOTHING), *schedule())
    assert engine.sink.named("decision") == []
    # The stock scheduler parks such a request for blocks that nobody will read.
    engine.feed(*arrive(OFFERED, 200, "cmpl-x-0-cccccccc"), (MATCH, 201, "cmpl-x-0-cccccccc", 0, 256),
                (ALLOC, 202, "cmpl-x-0-cccccccc", 256, 8))  # fmt: skip
    assert (engine.decision["decision"], engine.decision["reason"]) == ("none", "disabled")


def test_a_request_that_ends_before_the_decision_or_before_the_blocks_is_aborted() -> None:
    engine = Engine()
    engine.feed(*arrive(OFFERED), (FINISH, 9, P_ID, "finished_aborted", 0, 0, 0, False))
    assert (engine.decision["decision"], engine.decision["reason"], engine.decision["end"]) == ("none", "aborted", 9)
    engine = Engine()
    engine.feed(*arrive(OFFERED), *schedule(external=256)[:3], (FINISH, 9, P_ID, "finished_aborted", 0, 0, 8, False))
    assert (engine.decision["decision"], engine.decision["reason"]) == ("fetch", "aborted")
    assert "fetch_ns" not in engine.decision


def test_close_says_what_is_known() -> None:
    engine = Engine()
    engine.feed(*arrive(OFFERED), *schedule(external=256)[:4])
    engine.scheduler.close(50 * MS)
    assert (engine.decision["decision"], engine.decision["reason"], engine.decision["fetch_ns"]) == (
        "fetch", "fetched", 18 * MS,
    )  # fmt: skip
    engine.scheduler.close(60 * MS)
    assert len(engine.sink.named("decision")) == 1


def learn(engine: Engine) -> None:
    """Ten prefills of 100-1000 tokens at 0.3 ms each and 5 ms in all, ten fetches of 10 ms and 10 us a token."""
    for number in range(10):
        at, tokens = 1000 * (number + 1), 100 * (number + 1)
        prefill, fetch = f"cmpl-a{number}-0-aaaaaaaa", f"cmpl-b{number}-0-bbbbbbbb"
        engine.feed(*arrive(NOTHING, at, prefill, tokens),
                    *schedule(at=at, request_id=prefill, tokens=tokens, ms=5 + 0.3 * tokens))  # fmt: skip
        engine.feed(*arrive(OFFERED, at + 500, fetch, tokens + 32), *schedule(
            at=at + 500, external=tokens, request_id=fetch, tokens=tokens + 32, ms=5 + 0.3 * 32,
            fetch_ms=10 + 0.01 * tokens,
        ))  # fmt: skip
    engine.sink.spans.clear()


def test_regret_of_a_fetch_is_what_it_took_less_what_computing_would_have() -> None:
    engine = Engine()
    learn(engine)
    engine.feed(*arrive(OFFERED, 50_000), *schedule(at=50_000, external=256, fetch_ms=120))
    span = engine.decision
    # 256 tokens x 0.3 ms; the fixed 5 ms are paid either way.
    assert span["recompute_estimate_ns"] == pytest.approx(76.8 * MS, rel=0.02)
    assert span["fetch_estimate_ns"] == pytest.approx(12.56 * MS, rel=0.02)
    assert span["recompute_estimate_low_ns"] <= span["recompute_estimate_ns"] <= span["recompute_estimate_high_ns"]
    assert span["fetch_samples"] >= 8
    assert span["recompute_samples"] >= 8
    assert span["regret_ns"] == pytest.approx((120 - 76.8) * MS, rel=0.05)


def test_a_fetch_that_failed_has_cost_both_ways_and_one_that_failed_the_request_has_no_regret() -> None:
    fetch, recompute = Estimate(10, 5, 15, 9), Estimate(70, 60, 80, 9)
    made = Decision(decide.FETCH, decide.EXPIRED, 256)
    state = RequestState(
        "r", True, 0, 300, external_tokens=256, allocated=5, told=25, failed=True, scheduled=25, computed=256,
        finish=(105, LENGTH, 1),
    )  # fmt: skip
    assert decide.weigh(made, state, fetch, recompute) == {
        "fetch_ns": 20,
        "recompute_ns": 80,
        "regret_ns": 20 + 80 - 70,
    }
    state.scheduled, state.finish = None, (25, "finished_error", 0)
    assert decide.weigh(made, state, fetch, recompute) == {"fetch_ns": 20, "recompute_ns": None, "regret_ns": None}


def test_regret_of_a_recompute_is_what_it_took_less_what_fetching_would_have() -> None:
    engine = Engine(threshold=1000)
    learn(engine)
    engine.feed(*arrive(OFFERED, 50_000), *schedule(at=50_000, ms=90))
    span = engine.decision
    assert (span["reason"], span["recompute_ns"]) == ("below_threshold", pytest.approx(90 * MS * 256 / 300, rel=0.01))
    assert span["regret_ns"] == pytest.approx(90 * MS * 256 / 300 - 12.56 * MS, rel=0.05)


def test_estimates_survive_a_first_handshake_and_a_stall() -> None:
    costs = CostModel(marginal=False)
    for number in range(30):
        tokens = 100 + 37 * number % 900
        costs.add(tokens, 10 * MS + 20_000 * tokens)
    costs.add(500, 30_000 * MS)
    costs.add(300, 900 * MS)
    estimate = costs.estimate(400)
    assert estimate is not None
    assert estimate.ns == pytest.approx(18 * MS, rel=0.05)
    assert estimate.high_ns < 25 * MS


def test_many_small_measurements_leave_the_large_ones() -> None:
    costs = CostModel(marginal=True)
    for tokens in (1000, 2000, 1500):
        costs.add(tokens, 5 * MS + 300_000 * tokens)
    for _ in range(10_000):
        costs.add(32, 5 * MS + 300_000 * 32)
    estimate = costs.estimate(2000)
    assert estimate is not None
    assert estimate.samples <= 64
    assert estimate.ns == pytest.approx(600 * MS, rel=0.05)


def test_no_estimate_without_measurements_and_no_harm_from_absurd_ones() -> None:
    costs = CostModel(marginal=True)
    costs.add(0, 5)
    costs.add(10, 0)
    costs.add(10, 10)
    costs.add(10, 10)
    assert costs.estimate(100) is None
    costs.add(10, 10)
    assert costs.estimate(100) is not None
    assert costs.estimate(0) is None
    # Sizes that hardly differ: all of the cost is per token.
    assert fit([(100, 1000), (101, 1200), (102, 900)]).fixed_ns == 0


def again(engine: Engine, at: float = 1000) -> list[tuple[str, str]]:
    engine.feed(*arrive(OFFERED, at, "cmpl-again-0-cccccccc"))
    return [(span["reason"], span["field"]) for span in engine.sink.named("validation")]


@pytest.mark.parametrize(
    "scheduled", [{"external": 256}, {"local": 256}, {"local": 224}], ids=["read", "local", "below the threshold"]
)
def test_an_offer_that_was_taken_up_is_stale(scheduled: dict[str, int]) -> None:
    """P's read frees D's blocks, and so does its message that it needs them no longer: a retry reads other KV."""
    engine = Engine()
    engine.feed(*arrive(OFFERED), *schedule(**scheduled))
    assert engine.sink.named("validation") == []
    assert again(engine) == [("stale_offer", "remote_request_id")]


def test_an_offer_whose_read_failed_or_that_lacked_something_may_be_made_again() -> None:
    engine = Engine()
    engine.feed(*arrive(OFFERED), *schedule(external=256, computed=0, failed=True))
    assert again(engine) == []
    engine = Engine()
    engine.feed(*arrive({k: v for k, v in OFFERED.items() if k != "remote_host"}), *schedule())
    assert again(engine) == [("missing_field", "remote_host")]
    assert engine.decisions._spent == {}


def test_offers_are_bounded_and_counted() -> None:
    engine = Engine(limit=5)
    for number in range(8):
        engine.feed(*arrive(OFFERED, number, f"cmpl-{number}-0-aaaaaaaa"))
    assert engine.decisions.evicted == 3
    assert len(engine.decisions._pending) == 5


# -- what only the worker knows ------------------------------------------------------------------------------------


LOADED = (LOAD, 3, [(P_ID, "D0", EARLIER, True)], (), None, False)
FAILED = (RESULTS, 17, (P_ID,), (), frozenset({P_ID}))
PREPARED = (PREP, 4, 5 * MS, 7, "READ", 8, f"{EARLIER}:1".encode(), P_ID, "t", False)


def run_both(
    worker_events: list[tuple[Any, ...]], *, params: dict[str, Any] | None = None, failed: bool = True,
    finish: str = LENGTH,
) -> list[dict[str, Any]]:  # fmt: skip
    """P's two processes: the worker's facts reach the scheduler after the prompt is done."""
    worker = Process("prefill", "bidirectional", scheduler=False)
    worker.feed(LOADED, *worker_events)
    scheduler = Process("prefill", "bidirectional", scheduler=True)
    *rest, end = schedule(external=256, computed=0 if failed else None, failed=failed)
    scheduler.feed(*arrive(params or OFFERED), *rest, (*end[:3], finish, *end[4:]))
    if failed:
        assert scheduler.sink.named("decision") == [], "said before the worker has spoken"
    scheduler.port.told(make_output(cross(worker.deliver())))
    scheduler.drain()
    return [span for span in scheduler.sink.spans if span["name"] in {"decision", "validation"}]


@pytest.mark.parametrize(
    ("worker_events", "reason"),
    [
        ([(READ_CHECK, 4, P_ID, "D0", 0.0, 100, True), FAILED], "expired"),
        ([(FAILURE, 4, "handshake_failed", P_ID, "TimeoutError", None), FAILED], "remote_unknown"),
        ([FAILED], "remote_unknown"),
        ([(READ_CHECK, 4, P_ID, "D0", 0.0, 100, False), PREPARED, FAILED], "fetch_failed_recomputed"),
        ([(FAILURE, 4, "transfer_setup_failed", P_ID, "E", "D0"), FAILED], "fetch_failed_recomputed"),
    ],
)  # fmt: skip
def test_the_worker_says_why_a_fetch_brought_nothing(worker_events: list[tuple[Any, ...]], reason: str) -> None:
    (span,) = run_both(worker_events)
    assert (span["decision"], span["reason"]) == ("fetch", reason)
    assert (span["fetch_ns"], span["recompute_ns"]) == (18 * MS, pytest.approx(100 * MS * 256 / 300, rel=0.01))


@pytest.mark.parametrize(
    ("why", "seconds_left", "reason"),
    [("", 6.0, "expired"), ("", 6.001, "fetch_failed_recomputed"), ("", None, "fetch_failed_recomputed"),
     ("failed", 6.0, "fetch_failed_recomputed"), ("expired", 60.0, "expired")],
)  # fmt: skip
def test_without_the_workers_word_a_fetch_close_to_the_expiry_has_failed_for_it(
    why: str, seconds_left: float | None, reason: str
) -> None:
    """The worker declines from 5 s before the expiry on, and a second may pass until it looks."""
    assert decide.name_failure(RequestState("r", True, 0, 300), why, seconds_left) == reason


def test_a_request_that_ends_with_its_fetch_before_that_is_told() -> None:
    """vLLM's order with `kv_load_failure_policy` fail: the request's end, then the failed receive."""
    worker = Process("prefill", "bidirectional", scheduler=False)
    worker.feed(LOADED, (READ_CHECK, 4, P_ID, "D0", 0.0, 100, True), FAILED)
    scheduler = Process("prefill", "bidirectional", scheduler=True)
    scheduler.feed(
        *arrive(OFFERED), *schedule(external=256)[:3], (FINISH, 20, P_ID, "finished_error", 256, 0, 8, False),
        (TOLD, 21, (P_ID,), (), frozenset({P_ID})),
    )  # fmt: skip
    scheduler.port.told(make_output(cross(worker.deliver())))
    scheduler.drain()
    (span,) = scheduler.sink.named("decision")
    assert (span["decision"], span["reason"], span["fetch_ns"]) == ("fetch", "expired", 18 * MS)
    assert "recompute_ns" not in span
    (wait,) = scheduler.sink.named("prefill.remote_wait")
    assert (wait["outcome"], wait["start"], wait["end"]) == ("failed", 2, 20)
    assert [(lease["reason"], lease["outcome"]) for lease in scheduler.sink.named("lease")] == [
        ("reserved_awaiting_read", "aborted"), ("aborted_awaiting_receive", "released"),
    ]  # fmt: skip


def test_a_request_that_fails_with_its_fetch_was_not_recomputed() -> None:
    (span,) = run_both([PREPARED, FAILED], finish="finished_error")
    assert span["reason"] == "fetch_failed"


def test_a_request_that_vllm_ends_before_it_says_so_has_failed_too() -> None:
    """With `kv_load_failure_policy` fail, the failed request ends without a word about its blocks."""
    ended = (FINISH, 9, P_ID, "finished_error", 0, 0, 8, False)
    engine = Engine()
    engine.feed(*arrive(OFFERED), *schedule(external=256)[:3], ended)
    assert (engine.decision["decision"], engine.decision["reason"]) == ("fetch", "fetch_failed")
    engine = Engine()
    late = {**OFFERED, "remote_blocks_expiry_time": 1.0}
    engine.feed((PEERS, 0, [{"D0": (0, 1000)}]), *arrive(late), *schedule(external=256)[:3], ended)
    assert engine.decision["reason"] == "expired"


def test_another_engine_at_that_address_is_a_foreign_one() -> None:
    validation, decision = run_both([
        (HANDSHAKE, 4, 5 * MS, "D0", "engine_id_mismatch", False),
        (FAILURE, 6, "handshake_failed", P_ID, "RuntimeError", None), FAILED,
    ])  # fmt: skip
    assert decision["reason"] == "remote_unknown"
    assert (validation["reason"], validation["field"]) == ("foreign_engine", "remote_engine_id")


def test_the_clock_of_the_other_engine_comes_with_the_first_read() -> None:
    (span,) = run_both(
        [(READ_CHECK, 4, P_ID, "D0", 40.0, 100, False), (RESULTS, 17, (P_ID,), (), NONE)], failed=False,
    )  # fmt: skip
    assert span["seconds_to_expiry"] == pytest.approx(100 - 40 - 0.002)


def test_an_expiry_a_day_ahead_and_blocks_that_d_does_not_have_are_named_once_its_worker_is_known() -> None:
    checked = [(READ_CHECK, 4, P_ID, "D0", 0.0, 8, False), PREPARED, FAILED]
    validation, decision = run_both(checked)
    assert (validation["reason"], validation["field"]) == ("block_id_out_of_range", "remote_block_ids")
    assert decision["reason"] == "fetch_failed_recomputed"
    far = {**OFFERED, "remote_blocks_expiry_time": 200_000.0}
    validation, _ = run_both([(READ_CHECK, 4, P_ID, "D0", 0.0, 100, False), PREPARED, FAILED], params=far)
    assert (validation["reason"], validation["field"]) == ("clock_jump", "remote_blocks_expiry_time")


def test_the_reasons_are_documented_and_counted_from_the_start() -> None:
    from instrumented_connectors.metrics import catalogue as table

    assert {reason for (reason,) in table.DECISIONS.presets} == set(decide.REASONS)
    assert len(decide.REASONS) == 12


# -- the prompt against what D holds -------------------------------------------------------------------------------


def offer(prefix: Any, prompt: list[int], **params: Any) -> list[tuple[Any, ...]]:
    first, (code, at, request_id, is_prefill, fields) = arrive({**OFFERED, **params}, tokens=len(prompt))
    return [first, (code, at, request_id, is_prefill, fields, prefix, prompt)]


def make_comparing(now: float = 1.5) -> Engine:
    engine = Engine()
    engine.decisions.prefix_key = make_key(None)
    engine.decisions._now = lambda: round(now * MS)
    return engine


def test_a_prompt_that_is_no_continuation_is_named_at_once_and_in_the_decision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = list(range(3_000_000_000, 3_000_000_256))
    prefix = describe_prefix(held, 32, make_key(None))
    engine = make_comparing()
    prompt = [*held[:100], 7, *held[101:], *range(44)]
    with caplog.at_level(logging.WARNING):
        engine.feed(*offer(prefix, prompt))
        (validation,) = engine.sink.named("validation")
        engine.feed(*schedule(external=256))
    assert (validation["reason"], validation["field"], validation["start"], validation["error"]) == (
        "prefix_mismatch", "kvlens_prefix", 1.5, True,
    )  # fmt: skip
    span = engine.decision
    assert (span["prefix_match"], span["prefix_mismatch_block"], span["prefix_blocks"]) == ("no", 3, 8)
    assert (span["decision"], span["reason"]) == ("fetch", "fetched"), "what vLLM does is not changed"
    (record,) = [record for record in caplog.records if "doesn't begin" in record.getMessage()]
    assert P_ID in record.getMessage()
    # No token in the log, none in any span, none kept.
    everything = record.getMessage() + repr(engine.sink.spans)
    assert not any(str(token) in everything for token in held)
    assert not any("tokens" in slot for slot in Pending.__slots__)


def test_a_continuation_matches_and_without_a_digest_nothing_is_known() -> None:
    held = list(range(1000, 1256))
    engine = make_comparing()
    engine.feed(*offer(describe_prefix(held, 32, make_key(None)), [*held, *range(44)]), *schedule(external=256))
    assert (engine.decision["prefix_match"], engine.decision["prefix_blocks"]) == ("yes", 8)
    assert "prefix_mismatch_block" not in engine.decision
    assert engine.sink.named("validation") == []
    engine = make_comparing()
    engine.feed(*offer(None, [*held, *range(44)]), *schedule(external=256))
    assert (engine.decision["prefix_match"], engine.decision["prefix_blocks"]) == ("unknown", 0)


def test_what_is_no_digest_is_a_wrong_type() -> None:
    engine = make_comparing()
    engine.feed(*offer("nonsense", list(range(300))), *schedule(external=256))
    (validation,) = engine.sink.named("validation")
    assert (validation["reason"], validation["field"]) == ("wrong_type", "kvlens_prefix")
    assert engine.decision["prefix_match"] == "unknown"


def test_warnings_come_one_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    warn = LimitedWarning(lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for second in range(25):
            now[0] = second * 1_000_000_000
            warn("number %d", second)
    assert [record.getMessage() for record in caplog.records] == [
        "number 0", "number 10 (9 more like this were not logged)", "number 20 (9 more like this were not logged)",
    ]  # fmt: skip

"""Awful transfer parameters: one validation event each, vLLM's own answer or exception unchanged, nothing of ours."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Sink, build_scheduler, make_factory

from instrumented_connectors import events, guard
from instrumented_connectors.decide import FETCH, Policy, decide
from instrumented_connectors.offers import (
    FIELDS,
    MISSING,
    PULL,
    PUSH,
    READBACK,
    REASONS,
    Offer,
    find_late_problem,
    find_problem,
    read_fields,
)  # fmt: skip
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.request_state import RequestState
from instrumented_connectors.scheduler_lens import SchedulerLens

SOUND: dict[str, Any] = {
    "remote_engine_id": "D0", "remote_request_id": "cmpl-a-0-aaaaaaaa", "remote_host": "127.0.0.1",
    "remote_port": 5600, "remote_block_ids": [[1, 2, 3]], "remote_num_tokens": 96,
    "remote_blocks_expiry_time": 1234.5, "tp_size": 1,
}  # fmt: skip
ABSENT = object()

AWFUL: list[tuple[str, Any, str, str]] = [
    ("remote_engine_id", ABSENT, "missing_field", READBACK), ("remote_request_id", ABSENT, "missing_field", READBACK),
    ("remote_host", None, "missing_field", READBACK), ("remote_port", ABSENT, "missing_field", READBACK),
    ("remote_num_tokens", ABSENT, "missing_field", READBACK), ("remote_num_tokens", None, "missing_field", READBACK),
    ("remote_block_ids", ABSENT, "missing_field", PULL), ("tp_size", ABSENT, "missing_field", PUSH),
    ("remote_engine_id", 5, "wrong_type", READBACK), ("remote_engine_id", "", "wrong_type", READBACK),
    ("remote_request_id", ["a"], "wrong_type", READBACK), ("remote_host", b"host", "wrong_type", PULL),
    ("remote_port", "5600", "wrong_type", READBACK), ("remote_port", -1, "wrong_type", READBACK),
    ("remote_port", True, "wrong_type", PUSH), ("remote_num_tokens", "96", "wrong_type", READBACK),
    ("remote_num_tokens", 96.5, "wrong_type", READBACK), ("remote_num_tokens", -3, "wrong_type", READBACK),
    ("remote_num_tokens", float("nan"), "wrong_type", READBACK), ("tp_size", "two", "wrong_type", READBACK),
    ("remote_block_ids", "1,2", "wrong_type", READBACK), ("remote_block_ids", [1, 2], "wrong_type", READBACK),
    ("remote_block_ids", [["a"]], "wrong_type", READBACK), ("remote_block_ids", {"0": [1]}, "wrong_type", PULL),
    ("remote_block_ids", 7, "wrong_type", READBACK), ("remote_block_ids", [[1.5]], "wrong_type", READBACK),
    ("remote_blocks_expiry_time", "soon", "wrong_type", READBACK),
    ("remote_blocks_expiry_time", float("inf"), "wrong_type", READBACK),
    ("remote_blocks_expiry_time", float("nan"), "wrong_type", READBACK),
    ("remote_blocks_expiry_time", 10**400, "wrong_type", READBACK),
    ("remote_block_ids", [[1, -2]], "block_id_out_of_range", READBACK),
    ("remote_block_ids", [[1], [1 << 40]], "block_id_out_of_range", PULL),
    ("remote_blocks_expiry_time", -0.5, "negative_expiry", READBACK),
    ("remote_engine_id", "P0", "foreign_engine", READBACK),
]  # fmt: skip


def change(name: str, value: Any) -> dict[str, Any]:
    params = {**SOUND, name: value}
    if value is ABSENT:
        del params[name]
    return params


@pytest.mark.parametrize(("name", "value", "reason", "kind"), AWFUL, ids=range(len(AWFUL)))
def test_each_fault_is_named_with_its_field(name: str, value: Any, reason: str, kind: str) -> None:
    assert find_problem(read_fields(change(name, value)), "P0", kind) == (reason, name)
    assert reason in REASONS


@pytest.mark.parametrize("kind", [READBACK, PULL, PUSH])
def test_sound_offers_and_none_at_all_are_no_problem(kind: str) -> None:
    assert find_problem(read_fields(SOUND), "P0", kind) is None
    assert find_problem(read_fields({**SOUND, "remote_blocks_expiry_time": None}), "P0", kind) is None
    # What routers send with a first turn.
    assert find_problem(read_fields(dict.fromkeys(SOUND)), "P0", READBACK) is None
    assert find_problem(read_fields({}), "P0", READBACK) is None


def test_what_only_the_other_engine_can_tell() -> None:
    offer = Offer.of(read_fields(SOUND))
    assert find_late_problem(offer, None, None) is None
    assert find_late_problem(offer, -5.0, 4) is None
    assert find_late_problem(offer, 0.0, 3) == ("block_id_out_of_range", "remote_block_ids")
    assert find_late_problem(offer, 90_000.0, None) == ("clock_jump", "remote_blocks_expiry_time")


class Hostile:
    """Raises when it is compared or asked whether it is true."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise RuntimeError


SCRAPS: list[Any] = [
    None, ABSENT, True, False, 0, -1, 1 << 70, 10**400, 1.5, float("nan"), float("-inf"), "", "x", "\ud800", b"b", [],
    [[]], [[None]], [[1], "x"], [[[1]]], (), ([1, 2],), {}, {"a": 1}, {1, 2}, Hostile(), [Hostile()], [[Hostile()]],
    object(), lambda: None,
]  # fmt: skip


def scraps(seed: int) -> dict[str, Any]:
    source = random.Random(seed)
    names = [*FIELDS, "kvlens_prefix", "traceparent"]
    params = {name: source.choice(SCRAPS) for name in names if source.random() < 0.8}
    return {name: value for name, value in params.items() if value is not ABSENT}


@pytest.mark.parametrize("seed", range(0, 2000, 100))
def test_nothing_raises_and_nothing_has_more_than_one_parameter_event(seed: int) -> None:
    """A hundred random bags of scraps each: recorded by the lens, dispatched to the real builders."""
    errors = sum(guard.errors.values())
    for number in range(seed, seed + 100):
        params = {**SOUND, **scraps(number), "do_remote_decode": True}
        sink, recorder = Sink(), Recorder(100)
        scheduler = build_scheduler(make_factory(sink, "P0"), mode="bidirectional")
        decisions = scheduler._decisions
        decisions.prefix_key = b"k" * 32
        request = SimpleNamespace(
            request_id="cmpl-a-0-bbbbbbbb", kv_transfer_params=params, num_prompt_tokens=100, trace_headers=None,
            prompt_token_ids=list(range(100)),
        )  # fmt: skip
        SchedulerLens(recorder, consumes=False).arrived(request)
        recorded = [
            *recorder.drain(), (events.MATCH, 1, request.request_id, 0, 0), (events.ALLOC, 2, request.request_id, 0, 4),
            (events.FINISH, 9, request.request_id, "finished_stopped", 100, 1, 4, False),
        ]  # fmt: skip
        for event in recorded:
            for builder in (decisions, scheduler):
                if event[0] in builder.handlers:
                    builder.handlers[event[0]](event)
        assert len(sink.named("decision")) == 1
        assert len([span for span in sink.named("validation") if span["reason"] != "prefix_mismatch"]) <= 1
    assert sum(guard.errors.values()) == errors


@pytest.mark.parametrize("seed", range(5))
def test_the_decision_is_the_stock_schedulers(seed: int) -> None:
    """On random sound and incomplete offers: what we call a fetch is what vLLM's own class answers."""
    module = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler")
    source = random.Random(seed)
    stock = object.__new__(module.NixlPullConnectorScheduler)
    stock.is_bidirectional_kv_xfer_enabled = True
    for _ in range(400):
        stock.kv_recompute_threshold = source.choice([0, 1, 64, 500])
        params = {**SOUND, "do_remote_decode": True, "remote_num_tokens": source.choice([0, 31, 64, 96, 300, 900])}
        for name in source.sample(sorted(SOUND), k=source.choice([0, 0, 0, 1, 2])):
            del params[name]
        if source.random() < 0.1:
            params["remote_block_ids"] = source.choice([None, [], ()])
        local, prompt = 32 * source.randrange(12), 33 + source.randrange(500)
        local = min(local, prompt - 1)
        request = SimpleNamespace(
            request_id="r", kv_transfer_params=dict(params), num_prompt_tokens=prompt, prompt_token_ids=[1] * prompt
        )
        count, _ = stock.get_num_new_matched_tokens(request, local)
        state = RequestState("r", True, 0, prompt, local_tokens=local, external_tokens=count, allocated=1)
        made = decide(Offer.of(read_fields(params)), state, Policy(True, stock.kv_recompute_threshold))
        assert (made.decision == FETCH) == (count > 0)
        # Without the engine's answer the same reason would have been found.
        if count == 0:
            assert made.reason not in {"fetched", "disabled"}, params


def test_missing_is_not_none() -> None:
    assert read_fields({"remote_host": None})[2] is None
    assert read_fields({})[2] is MISSING

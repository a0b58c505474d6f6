"""D's digest of what it holds against the next prompt: every changed block is found, no token is handed out."""

from __future__ import annotations

import json
import random
import threading
from base64 import b64decode
from types import SimpleNamespace
from typing import Any

import pytest

from instrumented_connectors import events, guard
from instrumented_connectors.assembler import Assembler
from instrumented_connectors.prefix_digest import (
    PARAMETER,
    UNCOMPARED,
    PrefixMatch,
    begin_chain,
    compare_prefix,
    describe_prefix,
    make_key,
)  # fmt: skip
from instrumented_connectors.prefix_giver import PrefixGiver
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens

KEY = make_key(None)
BLOCK = 32


def make_tokens(count: int, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(150_000) for _ in range(count)]


HELD = make_tokens(10 * BLOCK + 7)


def compare(prompt: list[int] | None, prefix: Any = None, key: bytes = KEY, remote: int | None = len(HELD)) -> Any:
    sent = json.loads(json.dumps(describe_prefix(HELD, BLOCK, KEY) if prefix is None else prefix))
    return compare_prefix(sent, prompt, remote, key)


def test_a_next_turn_matches_and_so_does_a_shorter_prompt() -> None:
    assert compare(HELD + make_tokens(100, 2)) == PrefixMatch("yes", 10)
    assert compare(HELD) == PrefixMatch("yes", 10)
    assert compare(HELD[: 4 * BLOCK + 3]) == PrefixMatch("yes", 4)
    assert compare(HELD[: BLOCK - 1]) == UNCOMPARED


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 10 * BLOCK - 1, 10 * BLOCK, len(HELD) - 1])
def test_a_changed_token_is_found_in_its_block_also_in_the_last_incomplete_one(place: int) -> None:
    changed = [*HELD[:place], HELD[place] + 1, *HELD[place + 1 :], *make_tokens(50, 3)]
    assert compare(changed) == PrefixMatch("no", 10, place // BLOCK)


def test_removed_and_inserted_tokens_are_found() -> None:
    later = make_tokens(200, 4)
    assert compare(HELD[:100] + HELD[120:] + later) == PrefixMatch("no", 10, 100 // BLOCK)
    assert compare([*HELD[:100], 5, *HELD[100:], *later]) == PrefixMatch("no", 10, 100 // BLOCK)
    assert compare(make_tokens(len(HELD) + 50, 9)) == PrefixMatch("no", 10, 0)


def test_only_what_d_says_it_holds_is_compared() -> None:
    changed = [*HELD[:-BLOCK], *make_tokens(100, 5)]
    assert compare(changed, remote=9 * BLOCK) == PrefixMatch("yes", 9)
    assert compare(changed).match == "no"
    assert compare(HELD, remote=0) == UNCOMPARED
    assert compare(HELD, remote=-5) == UNCOMPARED


def test_another_key_or_version_is_unknown_rather_than_wrong() -> None:
    assert compare(HELD, key=make_key("secret")) == UNCOMPARED
    assert compare(HELD, {**describe_prefix(HELD, BLOCK, KEY), "v": 2}) == UNCOMPARED
    assert compare(None) == UNCOMPARED
    assert compare_prefix(None, HELD, 5, KEY) == UNCOMPARED
    secret = make_key("secret")
    assert compare(HELD, describe_prefix(HELD, BLOCK, secret), secret) == PrefixMatch("yes", 10)


AWFUL: list[Any] = [
    5, "text", [], {}, {"v": 1}, True,
    *({**describe_prefix(HELD, BLOCK, KEY), **change} for change in (
        {"block_size": 0}, {"block_size": -1}, {"block_size": "32"}, {"block_size": 1 << 40}, {"block_size": True},
        {"digest": "%%%"}, {"digest": 7}, {"digest": "AAAA"}, {"salt": "zz"}, {"salt": None}, {"tail": "AAAAAAAAAA=="},
        {"tail_tokens": -1}, {"tail_tokens": 1 << 40}, {"tail_tokens": None}, {"v": [1]}, {"check": None},
    )),
]  # fmt: skip


@pytest.mark.parametrize("prefix", AWFUL, ids=range(len(AWFUL)))
def test_what_is_no_digest_raises_nothing_and_never_says_no(prefix: Any) -> None:
    found = compare_prefix(prefix, HELD, len(HELD), KEY)
    assert found is None or found == UNCOMPARED


def test_no_token_is_handed_out() -> None:
    """4 bytes per block of 32 tokens, less than a token's worth for each token of the rest, and nothing twice."""
    first, second = (describe_prefix(HELD, BLOCK, KEY) for _ in range(2))
    assert len(b64decode(first["digest"])) == 4 * 10
    assert len(b64decode(first["tail"])) == 4
    assert [len(b64decode(describe_prefix(HELD[:count], BLOCK, KEY)["tail"])) for count in (1, 2, 3, 4, 31)] == [
        1, 2, 3, 4, 4,
    ]  # fmt: skip
    assert "tail" not in describe_prefix(HELD[:BLOCK], BLOCK, KEY)
    assert first["digest"] != second["digest"], "the same sequence can be recognised"
    # Equal blocks have different digests, and the fixed key is no plain hash.
    same = b64decode(describe_prefix([7] * 4 * BLOCK, BLOCK, KEY)["digest"])
    assert len({same[place : place + 4] for place in range(0, 16, 4)}) == 4


@pytest.mark.parametrize("first", [0, 5, BLOCK, 3 * BLOCK + 9, len(HELD)])
def test_a_chain_begun_with_the_prompt_ends_as_one_made_at_once(first: int) -> None:
    begun = begin_chain(HELD[:first], BLOCK, KEY)
    assert begun.tokens == first - first % BLOCK
    assert compare([*HELD, 1], describe_prefix(HELD, BLOCK, KEY, begun)) == PrefixMatch("yes", 10)
    # More of the prompt than has KV (an aborted decode): made anew.
    short = describe_prefix(HELD[:20], BLOCK, KEY, begun)
    assert compare(HELD, short, remote=20) == PrefixMatch("yes", 0)


def make_giver(recorder: Recorder | None = None, limit: int = 10) -> PrefixGiver:
    return PrefixGiver(Recorder(100) if recorder is None else recorder, BLOCK, KEY, limit)


def give(request: Any, result: Any) -> Any:
    make_giver().give(request, result)
    return result


REQUEST = SimpleNamespace(
    request_id="r", all_token_ids=[*HELD, 3], num_computed_tokens=len(HELD), prompt_token_ids=HELD[:200],
    kv_transfer_params={"do_remote_prefill": True},
)  # fmt: skip


def test_a_decoder_gives_it_with_the_blocks_that_it_keeps_and_only_then() -> None:
    stock = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": [[1]]}
    _, answer = give(REQUEST, (True, dict(stock)))
    assert {key: value for key, value in answer.items() if key != PARAMETER} == stock
    # The last sampled token has no KV yet.
    assert compare_prefix(answer[PARAMETER], [*HELD, 4], len(HELD), KEY) == PrefixMatch("yes", 10)
    assert give(REQUEST, (False, None)) == (False, None)
    prefill = {"do_remote_prefill": True, "do_remote_decode": False}
    assert give(REQUEST, (True, dict(prefill))) == (True, prefill)


def test_the_prompt_is_hashed_in_the_background_and_forgotten() -> None:
    recorder = Recorder(100)
    giver = make_giver(recorder, limit=2)
    for name in ("a", "b", "r"):
        giver.arrived(SimpleNamespace(**{**vars(REQUEST), "request_id": name}))
    # A request that isn't a hand-over keeps nothing.
    giver.arrived(SimpleNamespace(**{**vars(REQUEST), "kv_transfer_params": None}))
    recorded = recorder.drain()
    assert [event[2] for event in recorded] == ["a", "b", "r"]
    for event in recorded:
        giver.handlers[events.PROMPT](event)
    assert giver.evicted == 1
    answer = {"do_remote_decode": True}
    giver.give(REQUEST, (True, answer))
    assert compare_prefix(answer[PARAMETER], [*HELD, 4], len(HELD), KEY) == PrefixMatch("yes", 10)
    assert list(giver._begun) == ["b"]


@pytest.mark.parametrize(
    "request_",
    [
        SimpleNamespace(), SimpleNamespace(request_id="r", all_token_ids=None, num_computed_tokens=4),
        SimpleNamespace(request_id="r", all_token_ids=[-1, 1 << 40], num_computed_tokens=2),
        SimpleNamespace(request_id="r", all_token_ids=["a"], num_computed_tokens=1),
    ],
)  # fmt: skip
def test_whatever_fails_leaves_the_stock_answer(request_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "reraise_under_pytest", False)
    stock = {"do_remote_decode": True}
    assert give(request_, (True, dict(stock))) == (True, stock)
    assert give(request_, None) is None


def test_a_prompt_to_compare_wakes_the_background_thread_and_others_do_not() -> None:
    recorder, seen, woken = Recorder(10), threading.Event(), []
    assembler = Assembler(recorder, interval=3600)
    assembler.add(SimpleNamespace(evicted=0, handlers={events.OFFER: lambda _event: seen.set()}))
    lens = SchedulerLens(recorder, consumes=False)

    def wake() -> None:
        woken.append(1)
        assembler.wake()

    lens.wake = wake
    assembler.start()
    try:
        params = {"do_remote_decode": True}
        request = SimpleNamespace(
            request_id="r", kv_transfer_params=params, num_prompt_tokens=4, trace_headers=None, prompt_token_ids=[1]
        )
        lens.arrived(request)
        assert woken == []
        params[PARAMETER] = describe_prefix([1], BLOCK, KEY)  # type: ignore[assignment]
        lens.arrived(request)
        assert woken == [1]
        assert seen.wait(30), "it would have waited for an hour"
    finally:
        assembler.stop()

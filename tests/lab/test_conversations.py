"""What the router offers of a conversation, in every case that it can meet."""

from __future__ import annotations

from typing import Any

import pytest

from lab.conversations import MAX_HELD, OFFERS, Conversations, Policy, read_conversation

PARAMS = {
    "remote_engine_id": "D0", "remote_request_id": "cmpl-a-0-1", "remote_host": "h", "remote_port": 1,
    "remote_block_ids": [[1]], "remote_num_tokens": 4, "do_remote_decode": True, "kvlens_prefix": {"v": 1},
}  # fmt: skip


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def serve_turn(router: Conversations, name: str = "c", prompt: list[int] | None = None, **answer: Any) -> str:
    """Serve one turn on D0; return what was offered."""
    offer = router.begin(name, prompt)
    router.remember(name, "D0", {**PARAMS, **answer}, [*(prompt or [1, 2, 3]), 8, 9])
    return offer.kind


def test_a_first_turn_has_nothing_and_the_next_gets_what_d_answered() -> None:
    router = Conversations("bidirectional")
    assert serve_turn(router) == "first_turn"
    offer = router.begin("c")
    assert (offer.kind, offer.turn, offer.decoder) == ("offered", 1, "D0")
    assert offer.readback == {name: value for name, value in PARAMS.items() if name != "do_remote_decode"}
    assert router.counts == {"first_turn": 1, "offered": 1}


def test_blocks_are_offered_once() -> None:
    router = Conversations("bidirectional")
    serve_turn(router)
    assert [router.begin("c").kind for _ in range(3)] == ["offered", "lost", "lost"]


def test_conversations_do_not_mix() -> None:
    router = Conversations("bidirectional")
    for name in "ab":
        serve_turn(router, name, remote_request_id=f"of-{name}")
    assert [router.begin(name).readback["remote_request_id"] for name in "ba"] == ["of-b", "of-a"]


@pytest.mark.parametrize("answer", [{"remote_block_ids": None}, {"remote_host": None}])
def test_incomplete_answer_is_lost(answer: dict[str, Any]) -> None:
    router = Conversations("bidirectional")
    serve_turn(router, **answer)
    assert router.begin("c").kind == "lost"


def test_failed_turn_and_forgotten_blocks_are_lost_and_stay_with_their_d() -> None:
    router = Conversations("bidirectional")
    serve_turn(router)
    assert router.forget("c")
    assert not router.forget("c")
    assert not router.forget("unknown")
    offer = router.begin("c")
    assert (offer.kind, offer.readback, offer.decoder) == ("lost", {}, "D0")


@pytest.mark.parametrize(("stale", "kind", "sends"), [("send", "stale", True), ("drop", "stale_dropped", False)])
def test_expiry_is_by_the_routers_clock(stale: str, kind: str, sends: bool) -> None:
    clock = ManualClock()
    router = Conversations("bidirectional", Policy(retention_s=8.0, stale=stale), clock)
    serve_turn(router)
    clock.now += 2.9
    assert serve_turn(router) == "offered"
    # P declines the last 5 s, so the router counts them as gone too.
    clock.now += 3.0
    offer = router.begin("c")
    assert (offer.kind, bool(offer.readback)) == (kind, sends)


@pytest.mark.parametrize(
    ("edited", "prompt", "kind"),
    [
        ("trust", [1, 7, 3, 8, 9, 5], "offered"),
        ("send", [1, 7, 3, 8, 9, 5], "edited"),
        ("drop", [1, 7, 3, 8, 9, 5], "edited_dropped"),
        ("drop", [1, 2, 3, 8, 9, 5], "offered"),
        # Only what D holds counts: it computed four tokens.
        ("drop", [1, 2, 3, 8, 7, 5], "offered"),
        ("drop", [1, 2], "offered"),
        ("drop", None, "offered"),
    ],
)
def test_history_is_compared_only_if_asked_to(edited: str, prompt: list[int] | None, kind: str) -> None:
    router = Conversations("bidirectional", Policy(edited=edited))
    serve_turn(router)
    offer = router.begin("c", prompt)
    assert (offer.kind, bool(offer.readback)) == (kind, not kind.endswith("dropped"))


def test_a_moving_conversation_is_offered_its_blocks_but_no_decoder() -> None:
    router = Conversations("bidirectional", Policy(sticky=False))
    serve_turn(router)
    offer = router.begin("c")
    assert (offer.decoder, offer.readback["remote_engine_id"]) == (None, "D0")


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_other_modes_count_turns_and_offer_nothing(mode: str) -> None:
    router = Conversations(mode)
    assert serve_turn(router) == "none"
    offer = router.begin("c")
    assert (offer.kind, offer.turn, offer.readback, offer.decoder) == ("none", 1, {}, "D0")


def test_request_without_conversation_has_no_turn() -> None:
    router = Conversations("bidirectional")
    assert router.begin(None).turn is None
    router.remember(None, "D0", PARAMS)
    assert router.describe()["conversations"] == 0


def test_memory_is_bounded_and_the_oldest_become_lost() -> None:
    router = Conversations("bidirectional")
    for index in range(MAX_HELD + 1):
        serve_turn(router, str(index))
    assert router.describe()["held"] == MAX_HELD
    assert [router.begin(str(index)).kind for index in (0, 1)] == ["lost", "offered"]


def test_description_tells_what_is_held() -> None:
    clock = ManualClock()
    router = Conversations("bidirectional", Policy(retention_s=8.0), clock)
    serve_turn(router)
    clock.now += 9
    serve_turn(router, "d")
    about = router.describe()
    assert (about["held"], about["tokens_held"], about["expired"]) == (2, 8, 1)
    assert set(about["counts"]) <= set(OFFERS)


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, None),
        ({}, {"conversation_id": "b"}, "b"),
        ({}, {"conversation_id": 7}, "7"),
        ({}, {"conversation_id": {"no": "text"}}, None),
        ({}, {"conversation_id": " "}, None),
        ({"baggage": "x=1, gen_ai.conversation.id=a%20b;p=1"}, {"conversation_id": "b"}, "a b"),
        ({"baggage": "other=1"}, {}, None),
        ({"X-Conversation-Id": "h", "baggage": "gen_ai.conversation.id=a"}, {"conversation_id": "b"}, "h"),
        ({"X-Conversation-Id": "x" * 80}, {}, "x" * 64),
    ],
)
def test_where_the_id_comes_from(headers: dict[str, str], body: dict[str, Any], expected: str | None) -> None:
    assert read_conversation(headers, body) == expected

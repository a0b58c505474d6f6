"""A turn's prompt is what its kind says, and waits follow their distribution; both follow from the seed."""

from __future__ import annotations

import random
import statistics

import pytest

from lab.history import CHANGED, GAPS, KINDS, continue_history, count_common, draw_gap, edit, make_tokens

PROMPT = make_tokens(random.Random(1), 100)
ANSWER = make_tokens(random.Random(2), 40)


def next_turn(kind: str, seed: int = 3, changed: int = 20) -> list[int]:
    return continue_history(kind, (PROMPT, ANSWER), random.Random(seed), new=10, changed=changed).prompt


@pytest.mark.parametrize("kind", sorted(set(KINDS) - CHANGED))
def test_sound_kinds_repeat_everything(kind: str) -> None:
    turn = continue_history(kind, (PROMPT, ANSWER), random.Random(3), new=10, changed=20)
    assert turn.prompt[:140] == PROMPT + ANSWER
    assert (len(turn.prompt), turn.held_tokens, turn.common_tokens) == (150, 139, 139)


@pytest.mark.parametrize("kind", sorted(CHANGED))
@pytest.mark.parametrize("seed", range(20))
def test_changed_kinds_differ_from_what_d_holds(kind: str, seed: int) -> None:
    turn = continue_history(kind, (PROMPT, ANSWER), random.Random(seed), new=10, changed=20)
    assert turn.common_tokens < turn.held_tokens
    assert turn.common_tokens == count_common(PROMPT + ANSWER[:-1], turn.prompt)
    assert turn.describe() == {"planned": kind, "held_tokens": 139, "common_tokens": turn.common_tokens}


def test_each_kind_changes_its_own_part() -> None:
    assert next_turn("stripped")[:120] == PROMPT + ANSWER[20:]
    assert len(next_turn("fresh")) == 150
    edited = next_turn("edited")
    assert edited[:25] == PROMPT[:25]
    assert edited[75:140] == PROMPT[75:] + ANSWER


@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_short_prompts_can_be_edited_too(length: int) -> None:
    prompt = PROMPT[:length]
    changed = edit(prompt, random.Random(5), 32)
    assert len(changed) == length
    assert changed != prompt


def test_stripping_leaves_some_of_the_answer() -> None:
    assert next_turn("stripped", changed=99)[100:101] == ANSWER[-1:]


def test_same_seed_same_turn() -> None:
    assert next_turn("edited") == next_turn("edited")
    assert next_turn("edited") != next_turn("edited", seed=4)


@pytest.mark.parametrize("kind", [kind for kind in GAPS if kind != "none"])
def test_gaps_have_the_mean_that_was_asked_for(kind: str) -> None:
    source = random.Random(7)
    gaps = [draw_gap(kind, 2.0, 0.5, source) for _ in range(20_000)]
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(2.0, rel=0.03)
    assert (statistics.pstdev(gaps) > 0.5) is (kind != "fixed")


def test_no_gap_is_none() -> None:
    assert draw_gap("none", 5.0, 1.0, random.Random(1)) == draw_gap("exponential", 0.0, 1.0, random.Random(1)) == 0.0

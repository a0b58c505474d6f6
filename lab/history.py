"""What a conversation's next turn looks like, and how long the client waits before it. Everything follows from a seed.

A turn's kind is what the client does to the history. It is the truth that an analysis is held against: of the kinds
that send another history than D holds, a fetch would return the KV of other tokens, with HTTP 200.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from .model import FIRST_TEXT_TOKEN, ModelShape

KINDS = {
    "sound": "prompt and answer so far, and new tokens",
    "paused": "the same after a pause (beyond D's retention)",
    "lost": "the same, but the router has forgotten the blocks",
    "edited": "some tokens in the middle of the history are others",
    "stripped": "the first part of the last answer is left out, as clients do with reasoning",
    "fresh": "nothing of the history: a new prompt of the same length",
}
CHANGED = frozenset({"edited", "stripped", "fresh"})
"""Kinds whose prompt is not what D holds."""

GAPS = ("none", "fixed", "exponential", "lognormal")


@dataclass(frozen=True)
class Turn:
    """A turn to come: its kind, its prompt, tokens that D holds of the turn before, and how many of these agree."""

    kind: str
    prompt: list[int]
    held_tokens: int = 0
    common_tokens: int = 0

    def describe(self) -> dict[str, object]:
        """Return what the client's record says of the plan."""
        return {"planned": self.kind, "held_tokens": self.held_tokens, "common_tokens": self.common_tokens}


def make_tokens(source: random.Random, count: int) -> list[int]:
    """Return random token ids, special tokens left out."""
    vocabulary = ModelShape().vocabulary
    return [source.randrange(FIRST_TEXT_TOKEN, vocabulary) for _ in range(count)]


def continue_history(
    kind: str, before: tuple[Sequence[int], Sequence[int]], source: random.Random, *, new: int, changed: int
) -> Turn:
    """Return the next turn.

    Args:
        kind: one of KINDS.
        before: prompt and answer of the turn before, as token ids.
        source: the conversation's random numbers.
        new: tokens that the turn adds.
        changed: tokens that an edit replaces, or that stripping takes from the answer.
    """
    prompt, answer = before
    # D computed every token but the last one, which it only sampled.
    held = [*prompt, *answer][: len(prompt) + len(answer) - 1]
    if kind == "edited":
        history = [*edit(prompt, source, changed), *answer]
    elif kind == "stripped":
        history = [*prompt, *answer[min(changed, len(answer) - 1) :]]
    elif kind == "fresh":
        history = make_tokens(source, len(prompt) + len(answer))
    else:
        history = [*prompt, *answer]
    following = [*history, *make_tokens(source, new)]
    return Turn(kind, following, len(held), count_common(held, following))


def edit(prompt: Sequence[int], source: random.Random, count: int) -> list[int]:
    """Return the prompt with some tokens in its middle replaced by others."""
    count = min(count, max(1, len(prompt) // 4))
    begin = len(prompt) // 4 + source.randrange(max(1, len(prompt) // 2 - count))
    others = make_tokens(source, count)
    replaced = [
        other if other != token else _another(other)
        for token, other in zip(prompt[begin : begin + count], others, strict=True)
    ]
    return [*prompt[:begin], *replaced, *prompt[begin + count :]]


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    for index, (mine, theirs) in enumerate(zip(first, second, strict=False)):
        if mine != theirs:
            return index
    return min(len(first), len(second))


def draw_gap(distribution: str, mean_s: float, spread: float, source: random.Random) -> float:
    """Return one wait between two turns, in seconds.

    Args:
        distribution: one of GAPS.
        mean_s: its mean.
        spread: of lognormal: sigma of the logarithm.
        source: random numbers.
    """
    if distribution == "none" or mean_s <= 0:
        return 0.0
    if distribution == "exponential":
        return source.expovariate(1.0 / mean_s)
    if distribution == "lognormal":
        # The mean of a lognormal is exp(mu + sigma^2 / 2).
        return source.lognormvariate(math.log(mean_s) - spread * spread / 2, spread)
    return mean_s


def _another(token: int) -> int:
    return token + 1 if token + 1 < ModelShape().vocabulary else FIRST_TEXT_TOKEN

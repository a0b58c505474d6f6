"""The prompts of a workload's turns, made again from its seed and from the answers in its records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from .history import Turn, continue_history
from .workload import Workload, choose_request_id, plan


def turn_source(workload: Workload, index: int) -> random.Random:
    """Return the random numbers of a conversation's turns."""
    return random.Random(f"{workload.seed}-{index}-turns")


def next_turn(
    workload: Workload, turn: int, before: tuple[Sequence[int], Sequence[int]], source: random.Random
) -> Turn:
    """Return a conversation's next turn.

    Args:
        workload: what is sent.
        turn: its number, from 1.
        before: prompt and answer of the turn before, as token ids.
        source: the conversation's random numbers.
    """
    return continue_history(workload.kind_of(turn), before, source, new=workload.turn_tokens, changed=workload.changed)


def replay_prompts(workload: Workload, records: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the prompt of every request that a workload's records tell of, by request id.

    Args:
        workload: with one turn or several, no repeated request ids.
        records: as the load generator made them; a conversation ends with its first failed turn.
    """
    answers = {record["request_id"]: record["tokens"] for record in records}
    prompts = {}
    for entry in plan(workload):
        source, prompt = turn_source(workload, entry.index), entry.prompt
        for turn in range(workload.turns):
            name = choose_request_id(workload, entry.index, turn)
            if name not in answers:
                break
            prompts[name] = prompt
            if not answers[name]:
                break
            if turn + 1 < workload.turns:
                prompt = next_turn(workload, turn + 1, (prompt, answers[name]), source).prompt
    return prompts

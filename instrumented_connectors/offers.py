"""What a request's transfer parameters offer to read, and what is wrong with them. Pure; nothing here may raise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

ENGINE, REQUEST, HOST, PORT = "remote_engine_id", "remote_request_id", "remote_host", "remote_port"
BLOCKS, TOKENS, EXPIRY, TP_SIZE = "remote_block_ids", "remote_num_tokens", "remote_blocks_expiry_time", "tp_size"
FIELDS = (ENGINE, REQUEST, HOST, PORT, BLOCKS, TOKENS, EXPIRY, TP_SIZE)

MISSING: Final = object()
"""Value of a parameter that isn't there (a parameter may be there and be None)."""

# Without one of these the stock connector reads nothing.
_COORDINATES = (ENGINE, REQUEST, HOST, PORT)
READBACK, PULL, PUSH = "readback", "pull", "push"
"""Who is asked: P that may read an earlier turn back, D that reads a prompt, D that is written to."""
_NEEDED: Mapping[str, tuple[str, ...]] = {
    READBACK: (*_COORDINATES, TOKENS), PULL: (*_COORDINATES, BLOCKS), PUSH: (ENGINE, HOST, PORT, TP_SIZE),
}  # fmt: skip
_MAX_BLOCK = 1 << 31
_FAR_FUTURE_S = 86_400.0

MISSING_FIELD, WRONG_TYPE, OUT_OF_RANGE = "missing_field", "wrong_type", "block_id_out_of_range"
NEGATIVE_EXPIRY, FOREIGN_ENGINE, CLOCK_JUMP = "negative_expiry", "foreign_engine", "clock_jump"
PREFIX_MISMATCH, STALE_OFFER = "prefix_mismatch", "stale_offer"
REASONS: Mapping[str, str] = {
    PREFIX_MISMATCH: "the prompt doesn't begin with what the other side's blocks hold: a fetch returns wrong KV",
    MISSING_FIELD: "a parameter that a read needs isn't there",
    WRONG_TYPE: "a parameter has another type than vLLM gives it",
    OUT_OF_RANGE: "a block id is negative, or beyond what the other engine has",
    NEGATIVE_EXPIRY: "the blocks' expiry is before the begin of the other engine's clock",
    FOREIGN_ENGINE: "the blocks' engine is this one, or the engine at that address is another one",
    STALE_OFFER: "these blocks were read or declined before, upon which D has freed them: they may be somebody else's",
    CLOCK_JUMP: "the blocks' expiry lies over a day ahead: the other engine's clock isn't the one that was measured",
}

Problem = tuple[str, str]
"""Reason of the closed list, name of the bad parameter."""


def read_fields(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of the parameters that an offer consists of (called on the scheduler's thread)."""
    get = params.get
    return tuple([get(name, MISSING) for name in FIELDS])


@dataclass(slots=True)
class Offer:
    """What another engine is said to hold for this request."""

    engine_id: str | None
    request_id: str | None
    has_blocks: bool
    is_complete: bool
    tokens: int | None
    expiry_s: float | None
    highest_block: int

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Offer:
        """Return the offer of the values of `FIELDS`; what has a wrong type counts as not said."""
        given = dict(zip(FIELDS, values, strict=False))
        tokens, expiry = given.get(TOKENS), given.get(EXPIRY)
        return cls(
            engine_id=_text(given.get(ENGINE)),
            request_id=_text(given.get(REQUEST)),
            has_blocks=_is_given(given.get(BLOCKS)),
            is_complete=all(given.get(name, MISSING) is not MISSING for name in _COORDINATES),
            tokens=None if (count := _number(tokens)) is None else int(count),
            expiry_s=_number(expiry),
            highest_block=max(_block_ids(given.get(BLOCKS)), default=-1),
        )


def find_problem(values: tuple[Any, ...], engine_id: str, kind: str) -> Problem | None:
    """Return what is wrong with an offer, the first thing only; None for a sound one, and for none at all.

    Args:
        values: of `FIELDS`.
        engine_id: this engine.
        kind: READBACK, PULL or PUSH.
    """
    given = dict(zip(FIELDS, values, strict=False))
    if kind == READBACK and not _is_given(given[BLOCKS]):
        return None
    for name in _NEEDED[kind]:
        if given[name] is MISSING or given[name] is None:
            return MISSING_FIELD, name
    return _find_wrong_type(given, kind) or _find_wrong_value(given, engine_id)


def _find_wrong_type(given: Mapping[str, Any], kind: str) -> Problem | None:
    for name in (ENGINE, REQUEST, HOST):
        if name in _NEEDED[kind] and not (isinstance(given[name], str) and given[name]):
            return WRONG_TYPE, name
    for name in (PORT, TOKENS, TP_SIZE):
        value = given[name]
        if value is not MISSING and value is not None and not _is_count(value):
            return WRONG_TYPE, name
    expiry = given[EXPIRY]
    if expiry is not MISSING and expiry is not None and _number(expiry) is None:
        return WRONG_TYPE, EXPIRY
    if kind != PUSH and not _is_nested(given[BLOCKS]):
        return WRONG_TYPE, BLOCKS
    return None


def _find_wrong_value(given: Mapping[str, Any], engine_id: str) -> Problem | None:
    if any(not 0 <= block < _MAX_BLOCK for block in _block_ids(given[BLOCKS])):
        return OUT_OF_RANGE, BLOCKS
    expiry = given[EXPIRY]
    if _is_number(expiry) and expiry < 0:
        return NEGATIVE_EXPIRY, EXPIRY
    return (FOREIGN_ENGINE, ENGINE) if given[ENGINE] == engine_id else None


def find_late_problem(offer: Offer, seconds_left: float | None, peer_blocks: int | None) -> Problem | None:
    """Return what is wrong with an offer in the light of what the worker learned of the other engine.

    Args:
        offer: the offer.
        seconds_left: until the blocks expire, on this engine's clock; None when that clock is unknown.
        peer_blocks: KV-cache blocks of the other engine; None when unknown.
    """
    if peer_blocks is not None and offer.highest_block >= peer_blocks:
        return OUT_OF_RANGE, BLOCKS
    if seconds_left is not None and seconds_left > _FAR_FUTURE_S:
        return CLOCK_JUMP, EXPIRY
    return None


def _is_given(blocks: Any) -> bool:
    try:
        return blocks is not MISSING and bool(blocks)
    except Exception:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    try:
        return float(value) if _is_number(value) and math.isfinite(value) else None
    except OverflowError:  # a whole number beyond any float
        return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_nested(blocks: Any) -> bool:
    """Whether blocks are groups of whole numbers, as JSON makes them of vLLM's tuples of lists."""
    return isinstance(blocks, (list, tuple)) and all(
        isinstance(group, (list, tuple)) and all(isinstance(block, int) for block in group) for group in blocks
    )


def _block_ids(blocks: Any) -> Iterable[int]:
    if not isinstance(blocks, (list, tuple)):
        return []
    groups = [group for group in blocks if isinstance(group, (list, tuple))]
    return [block for group in groups for block in group if isinstance(block, int) and not isinstance(block, bool)]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

"""A keyed digest per block of a sequence: D hands it out with its blocks, P compares it with its own prompt.

Nothing today notices when the next turn's prompt doesn't begin with what D holds (edited history, stripped reasoning):
the fetch brings KV of other tokens, with HTTP 200. The digest travels as one more key in D's transfer parameters.

Each block's digest is chained to those before it by a state of 16 bytes of which 4 are handed out, keyed, and salted
anew for each answer. A tail shorter than a block gives a byte per token at most, which is less than a token holds.
Without KVLENS_PREFIX_KEY the key is a fixed one: whoever sees the parameters and knows all of a sequence but a few
tokens could then try candidates for those. A key that only the engines know rules that out.
"""

from __future__ import annotations

import os
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

PARAMETER = "kvlens_prefix"
VERSION = 1
SIZE = 4
_STATE = 16
_SALT = 8
_FIXED_KEY = b"kvlens prefix 1"
_MAX_BLOCK_SIZE = 1 << 16

YES, NO, UNKNOWN = "yes", "no", "unknown"


@dataclass(frozen=True)
class PrefixMatch:
    """Whether a prompt begins with what the other side holds.

    Attributes:
        match: yes, no or unknown.
        blocks: full blocks compared.
        mismatch: the first block that differs, 0-based; None unless `match` is no.
    """

    match: str
    blocks: int = 0
    mismatch: int | None = None


UNCOMPARED = PrefixMatch(UNKNOWN)


def make_key(secret: str | None) -> bytes:
    """Return the digest's key of KVLENS_PREFIX_KEY, or the fixed one."""
    return blake2b((secret or "").encode() or _FIXED_KEY, digest_size=32, person=b"kvlens-prefix").digest()


def hash_blocks(tokens: Sequence[int], block_size: int, state: bytes, key: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the digests of all full blocks (4 bytes each), the state after them, and the digest of the rest.

    Args:
        tokens: what comes after `state`.
        block_size: tokens per block.
        state: of the chain so far; the salt at its begin.
        key: see `make_key`.
    """
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    raw, step = packed.tobytes(), packed.itemsize * block_size
    keyed = blake2b(digest_size=_STATE, key=key)
    digests = bytearray()
    whole = len(raw) - len(raw) % step
    for start in range(0, whole, step):
        block = keyed.copy()
        block.update(state + raw[start : start + step])
        state = block.digest()
        digests += state[:SIZE]
    rest = len(tokens) % block_size
    if not rest:
        return bytes(digests), state, b""
    keyed.update(state + raw[whole:])
    return bytes(digests), state, keyed.digest()[: min(SIZE, rest)]


class Begun(NamedTuple):
    """A chain over the first tokens of a sequence: how many (whole blocks), salt, their digests, state after them."""

    tokens: int
    salt: bytes
    digests: bytes
    state: bytes


def begin_chain(tokens: Sequence[int], block_size: int, key: bytes) -> Begun:
    """Return the chain over the full blocks of a sequence that will grow."""
    whole, salt = len(tokens) - len(tokens) % block_size, os.urandom(_SALT)
    digests, state, _ = hash_blocks(tokens[:whole], block_size, salt, key)
    return Begun(whole, salt, digests, state)


def describe_prefix(tokens: Sequence[int], block_size: int, key: bytes, begun: Begun | None = None) -> dict[str, Any]:
    """Return what D hands out for a sequence, of whose first blocks the chain may be there already."""
    if begun is None or begun.tokens > len(tokens):
        salt = os.urandom(_SALT)
        begun = Begun(0, salt, b"", salt)
    digests, _, tail = hash_blocks(tokens[begun.tokens :], block_size, begun.state, key)
    answer: dict[str, Any] = {
        "v": VERSION, "block_size": block_size, "digest": b64encode(begun.digests + digests).decode(),
        "salt": begun.salt.hex(), "check": _check_of(begun.salt, key),
    }  # fmt: skip
    if tail:
        answer |= {"tail": b64encode(tail).decode(), "tail_tokens": len(tokens) % block_size}
    return answer


def _check_of(salt: bytes, key: bytes) -> str:
    """Return what tells another key from another sequence."""
    return blake2b(salt, digest_size=SIZE, key=key).hexdigest()


def compare_prefix(
    prefix: Any, tokens: Sequence[int] | None, remote_tokens: int | None, key: bytes
) -> PrefixMatch | None:
    """Compare a prompt with what D handed out; None when that can't be read.

    Args:
        prefix: D's `kvlens_prefix`; None when there was none.
        tokens: P's prompt; None when it isn't made of tokens.
        remote_tokens: tokens that D says it holds; None when it doesn't say.
        key: see `make_key`.
    """
    if prefix is None:
        return UNCOMPARED
    try:
        theirs = _Handed.of(prefix)
    except (KeyError, TypeError, ValueError):
        return None
    if theirs is None or not tokens or theirs.check != _check_of(theirs.salt, key):
        return UNCOMPARED
    size = theirs.block_size
    held = len(tokens) if remote_tokens is None else min(len(tokens), remote_tokens)
    blocks = min(len(theirs.digests) // SIZE, max(0, held) // size)
    has_tail = blocks * SIZE == len(theirs.digests) and 0 < theirs.tail_tokens <= held - blocks * size
    compared = tokens[: blocks * size + (theirs.tail_tokens if has_tail else 0)]
    ours, _, tail = hash_blocks(compared, size, theirs.salt, key)
    for block in range(blocks):
        place = slice(block * SIZE, (block + 1) * SIZE)
        if ours[place] != theirs.digests[place]:
            return PrefixMatch(NO, blocks, block)
    if has_tail and tail != theirs.tail:
        return PrefixMatch(NO, blocks, blocks)
    return PrefixMatch(YES, blocks) if blocks or has_tail else UNCOMPARED


@dataclass(frozen=True)
class _Handed:
    """What D handed out, checked."""

    block_size: int
    digests: bytes
    salt: bytes
    check: str
    tail: bytes
    tail_tokens: int

    @classmethod
    def of(cls, prefix: Mapping[str, Any]) -> _Handed | None:
        """Read it; None for another version.

        Raises:
            KeyError, TypeError, ValueError: it isn't what D hands out.
        """
        if prefix["v"] != VERSION:
            return None
        size, tail_tokens = prefix["block_size"], prefix.get("tail_tokens", 0)
        if type(size) is not int or not 0 < size <= _MAX_BLOCK_SIZE or type(tail_tokens) is not int:
            raise ValueError("block size")
        digests = b64decode(prefix["digest"], validate=True)
        tail = b64decode(prefix.get("tail", ""), validate=True)
        if len(digests) % SIZE or len(tail) != min(SIZE, tail_tokens) or not 0 <= tail_tokens < size:
            raise ValueError("length")
        return cls(size, digests, bytes.fromhex(prefix["salt"]), prefix["check"], tail, tail_tokens)

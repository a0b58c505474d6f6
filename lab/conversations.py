"""What the router knows of conversations: who holds a conversation's blocks, how many tokens, until when.

An offer is made once: P's read (or its refusal, which notifies D too) frees D's blocks, so a second use of the same
parameters would read blocks that belong to somebody else by then.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from .legs import readback_params

HEADER = "X-Conversation-Id"
BAGGAGE_KEY = "gen_ai.conversation.id"
BODY_KEY = "conversation_id"
MAX_ID = 64

OFFERS = {
    "none": "no conversation id, or a mode without readback",
    "first_turn": "the router has never seen the conversation",
    "offered": "the blocks of the turn before",
    "lost": "a later turn, but nothing is known of its blocks: an answer without parameters, a failed or second "
    "attempt, a router that forgot",
    "stale": "the blocks have expired by the router's clock; offered all the same",
    "stale_dropped": "the blocks have expired by the router's clock; not offered",
    "edited": "the prompt does not continue what D holds; offered all the same",
    "edited_dropped": "the prompt does not continue what D holds; not offered",
}
"""Values of `readback_offered` and what they mean."""

# vLLM's P declines a read this long before D's expiry (_KV_BLOCKS_EXPIRY_SAFETY_MARGIN): so the router counts so too.
EXPIRY_MARGIN_S = 5.0
MAX_HELD = 4096
MAX_KNOWN = 16 * MAX_HELD


@dataclass(frozen=True)
class Policy:
    """What the router does where it has a choice.

    retention_s: how long D keeps blocks (its `decoder_kv_blocks_ttl`); margin_s: how much earlier they count as
    expired; stale: "send" or "drop" an offer that has expired; edited: "trust" the client's history, or compare it
    with what D holds where the prompt is token ids and "send" or "drop" an offer that does not fit; sticky: a
    conversation stays with the D that holds its blocks, else it moves on to the next one (P still reads from the
    old one).
    """

    retention_s: float = 480.0
    margin_s: float = EXPIRY_MARGIN_S
    stale: str = "send"
    edited: str = "trust"
    sticky: bool = True


@dataclass(frozen=True)
class Offer:
    """What a turn gets: its number (from 0, None without conversation), the offer's kind, what P is sent, D's id."""

    kind: str = "none"
    turn: int | None = None
    readback: Mapping[str, Any] = field(default_factory=dict)
    decoder: str | None = None


@dataclass
class Held:
    """What one D holds of a conversation: its parameters, tokens, expiry by the router's clock (s), the token ids."""

    params: Mapping[str, Any]
    tokens_held: int
    expires_at: float
    tokens: Sequence[int] | None = None


@dataclass
class Conversation:
    """One conversation: turns begun so far, last D, what that D holds (None once it was offered, or lost)."""

    turns: int = 0
    decoder: str | None = None
    held: Held | None = None


class Conversations:
    """The router's memory; bounded: the oldest lose their blocks first, and are forgotten much later.

    Args:
        mode: only bidirectional offers anything.
        policy: the choices.
        clock: seconds, of the router alone: D's expiry time is in a clock that no other host shares.
    """

    def __init__(self, mode: str, policy: Policy | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads_back = mode == "bidirectional"
        self._policy, self._clock = policy or Policy(), clock
        self._known: OrderedDict[str, Conversation] = OrderedDict()
        self._held: OrderedDict[str, None] = OrderedDict()
        self.counts: Counter[str] = Counter()

    @property
    def compares(self) -> bool:
        """Return whether prompts are compared with what D holds."""
        return self._policy.edited != "trust"

    def begin(self, conversation: str | None, prompt: object = None) -> Offer:
        """Count a turn and return its offer, which no later turn gets again.

        Args:
            conversation: its id, None if the request names none.
            prompt: the prompt; only token ids can be compared.
        """
        if not conversation:
            self.counts["none"] += 1
            return Offer()
        is_new = conversation not in self._known
        entry = self._known.setdefault(conversation, Conversation())
        self._known.move_to_end(conversation)
        while len(self._known) > MAX_KNOWN:
            self._held.pop(self._known.popitem(last=False)[0], None)
        turn, entry.turns = entry.turns, entry.turns + 1
        held, entry.held = entry.held, None
        self._held.pop(conversation, None)
        kind = self._judge(is_new, held, prompt) if self._reads_back else "none"
        self.counts[kind] += 1
        is_sent = held is not None and kind in ("offered", "stale", "edited")
        readback = readback_params(held.params) if held is not None and is_sent else {}
        return Offer(kind, turn, readback, entry.decoder if self._policy.sticky else None)

    def remember(
        self, conversation: str | None, decoder: str, params: object, tokens: Sequence[int] | None = None
    ) -> None:
        """Keep what D answered for the next turn.

        Args:
            conversation: its id.
            decoder: id of the D that served the turn.
            params: D's transfer parameters; None (or without blocks) if it returned none.
            tokens: prompt and answer as token ids, None if they are not known.
        """
        entry = self._known.get(conversation or "")
        if entry is None or conversation is None:
            return
        entry.decoder = decoder
        if not isinstance(params, Mapping) or not readback_params(params):
            return
        count = params.get("remote_num_tokens")
        held = count if isinstance(count, int) else 0
        known = list(tokens[:held]) if tokens is not None and self.compares else None
        entry.held = Held(params, held, self._clock() + self._policy.retention_s, known)
        self._held[conversation] = None
        while len(self._held) > MAX_HELD:
            self._known[self._held.popitem(last=False)[0]].held = None

    def forget(self, conversation: str) -> bool:
        """Lose what is known of a conversation's blocks, as a restarted router does; return whether there was any."""
        entry = self._known.get(conversation)
        had = entry is not None and entry.held is not None
        if entry is not None:
            entry.held = None
        self._held.pop(conversation, None)
        return had

    def describe(self) -> dict[str, Any]:
        """Return counts of what was offered, and what is held now."""
        now = self._clock()
        held = [entry.held for name in self._held if (entry := self._known[name]).held]
        return {
            "counts": dict(self.counts),
            "conversations": len(self._known),
            "held": len(held),
            "tokens_held": sum(one.tokens_held for one in held if one),
            "expired": sum(one.expires_at <= now for one in held if one),
        }

    def _judge(self, is_new: bool, held: Held | None, prompt: object) -> str:
        if is_new:
            return "first_turn"
        if held is None:
            return "lost"
        if self.compares and not _continues(held.tokens, prompt):
            return "edited" if self._policy.edited == "send" else "edited_dropped"
        if self._clock() + self._policy.margin_s >= held.expires_at:
            return "stale" if self._policy.stale == "send" else "stale_dropped"
        return "offered"


def read_conversation(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """Return a request's conversation id: its own header, else W3C baggage, else a field of the body."""
    for value in (headers.get(HEADER), _from_baggage(headers.get("baggage", "")), body.get(BODY_KEY)):
        if isinstance(value, str | int) and (name := str(value).strip()):
            return name[:MAX_ID]
    return None


def _from_baggage(value: str) -> str | None:
    for member in value.split(","):
        name, _, rest = member.partition("=")
        if name.strip() == BAGGAGE_KEY:
            return unquote(rest.partition(";")[0].strip())
    return None


def _continues(held: Sequence[int] | None, prompt: object) -> bool:
    """Return whether a prompt agrees with what is held as far as both go; what cannot be compared is believed."""
    if held is None or not isinstance(prompt, list):
        return True
    return all(mine == theirs for mine, theirs in zip(held, prompt, strict=False))

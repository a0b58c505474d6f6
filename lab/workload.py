"""What the load generator sends: prompts, their lengths and arrival times. Everything follows from the seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from .conversations import BAGGAGE_KEY, HEADER
from .errors import LabError
from .history import GAPS, KINDS, make_tokens
from .legs import CHAT, COMPLETIONS
from .model import SERVED_NAME

WARMUP_PREFIX = "warmup-"
"""Request ids that begin like this are not measurements: left out of client.jsonl and ignored by the analysis."""

VIA = ("body", "header", "baggage")


@dataclass(frozen=True)
class Workload:
    """An open-loop (rate) or closed-loop (concurrency alone) workload.

    requests: number of requests, or of conversations if turns > 1.
    rate: mean arrivals per second, Poisson; None sends the next one as soon as `concurrency` allows.
    concurrency: most requests in flight; None for no cap (open loop) or 1 (no rate).
    input_lens: prompt lengths in tokens, used equally often in a shuffled order.
    output_len: output tokens of every request (end of sequence is ignored).
    request_ids: fixed X-Request-Ids, used in turn; else `id_prefix` and a number.
    traceparent: send a W3C traceparent (seeded) with every request.
    turns: requests per conversation; each repeats the history and adds `turn_tokens` tokens.
    history: kinds of the later turns (see `history.KINDS`), used in turn.
    changed_tokens: tokens that an edited turn replaces, or a stripped one leaves out; None: half of the answer.
    think_s, gaps, gap_spread: mean wait between two turns, its distribution (seeded), sigma of a lognormal one.
    pause_s: the wait before a paused turn instead.
    conversation_via: where the conversation's id travels: body, header or baggage.
    extra_body: more fields of the request body (n, sampling parameters).
    """

    requests: int = 10
    rate: float | None = None
    concurrency: int | None = None
    input_lens: tuple[int, ...] = (200, 1000, 4000)
    output_len: int = 16
    seed: int = 1
    stream: bool = True
    chat: bool = False
    id_prefix: str = "req"
    request_ids: tuple[str, ...] = ()
    traceparent: bool = False
    turns: int = 1
    turn_tokens: int = 100
    think_s: float = 0.0
    gaps: str = "fixed"
    gap_spread: float = 1.0
    pause_s: float = 15.0
    history: tuple[str, ...] = ("sound",)
    changed_tokens: int | None = None
    conversation_via: str = "body"
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = {
            "requests must be at least 1": self.requests < 1,
            "the rate must be above 0": self.rate is not None and not self.rate > 0,
            "the concurrency must be at least 1": self.concurrency is not None and self.concurrency < 1,
            "input lengths must be at least 1": not self.input_lens or min(self.input_lens) < 1,
            "the output length must be at least 1": self.output_len < 1,
            "turns must be at least 1": self.turns < 1,
            "conversations need completions, not chat": self.turns > 1 and self.chat,
            f"a turn is one of: {', '.join(KINDS)}": not self.history or not set(self.history) <= set(KINDS),
            f"gaps are one of: {', '.join(GAPS)}": self.gaps not in GAPS,
            "waits must be at least 0 s": min(self.think_s, self.pause_s, self.gap_spread) < 0,
            "changed tokens must be at least 1": self.changed_tokens is not None and self.changed_tokens < 1,
            "a conversation's id travels in body, header or baggage": self.conversation_via not in VIA,
        }
        for problem, is_so in problems.items():
            if is_so:
                raise LabError(f"workload: {problem}", "correct the workload's settings")

    def to_json(self) -> dict[str, Any]:
        """Return the workload as JSON, for the manifest and for the load generator's process."""
        return {**asdict(self), "extra_body": dict(self.extra_body), "max_in_flight": self.max_in_flight}

    @property
    def changed(self) -> int:
        """Return how many tokens an edited or stripped turn changes."""
        return self.changed_tokens or max(1, self.output_len // 2)

    def kind_of(self, turn: int) -> str:
        """Return the kind of a conversation's turn (from 0)."""
        return self.history[(turn - 1) % len(self.history)] if turn else "first"

    @property
    def max_in_flight(self) -> int | None:
        """Return how many requests may be in flight, None for any number."""
        return 1 if self.rate is None and self.concurrency is None else self.concurrency

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        """Return the workload of its JSON form."""
        fields = {name: entry for name, entry in value.items() if name != "max_in_flight"}
        for name in ("input_lens", "request_ids", "history"):
            if name in fields:
                fields[name] = tuple(fields[name] or ())
        return cls(**fields)


@dataclass(frozen=True)
class Planned:
    """One request (or first turn) to come: arrival in seconds after the start, prompt as token ids, its identity."""

    index: int
    arrival_s: float
    prompt: list[int]
    request_id: str
    traceparent: str | None


def plan(workload: Workload) -> list[Planned]:
    """Return the requests of a workload in arrival order."""
    tokens, identity = random.Random(f"{workload.seed}-tokens"), random.Random(f"{workload.seed}-trace")
    return [
        Planned(
            index,
            arrival_s,
            make_tokens(tokens, length),
            choose_request_id(workload, index),
            make_traceparent(identity) if workload.traceparent else None,
        )
        for index, (arrival_s, length) in enumerate(zip(arrivals(workload), lengths(workload), strict=True))
    ]


def arrivals(workload: Workload) -> Iterator[float]:
    """Yield arrival times in seconds: a Poisson process, all zero without a rate."""
    gaps = random.Random(f"{workload.seed}-arrivals")
    now = 0.0
    for _ in range(workload.requests):
        if workload.rate is not None:
            now += gaps.expovariate(workload.rate)
        yield now


def lengths(workload: Workload) -> list[int]:
    """Return the prompt lengths: each equally often, in a seeded order."""
    count = len(workload.input_lens)
    chosen = [workload.input_lens[index % count] for index in range(workload.requests)]
    random.Random(f"{workload.seed}-lengths").shuffle(chosen)
    return chosen


def make_traceparent(source: random.Random) -> str:
    """Return a sampled W3C traceparent."""
    return f"00-{source.getrandbits(128) | 1:032x}-{source.getrandbits(64) | 1:016x}-01"


def choose_request_id(workload: Workload, index: int, turn: int = 0) -> str:
    """Return the X-Request-Id of a request (or turn of a conversation)."""
    if workload.request_ids:
        base = workload.request_ids[index % len(workload.request_ids)]
    else:
        base = f"{workload.id_prefix}-{workload.seed}-{index:05d}"
    return base if workload.turns == 1 else f"{base}-t{turn}"


def request_path(workload: Workload) -> str:
    """Return the API path of the workload's requests."""
    return CHAT if workload.chat else COMPLETIONS


def encode_body(workload: Workload, prompt: list[int], conversation: str | None = None) -> bytes:
    """Return the request body as JSON; done before the clock starts.

    A chat prompt is text: token `i` becomes the word `t<i>`, so that lengths differ as asked, if not exactly.
    """
    body: dict[str, Any] = {
        "model": SERVED_NAME,
        "max_tokens": workload.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": workload.stream,
    }
    if workload.chat:
        body["messages"] = [{"role": "user", "content": " ".join(f"t{token}" for token in prompt)}]
    else:
        body["prompt"] = prompt
    if conversation is not None and workload.conversation_via == "body":
        body["conversation_id"] = conversation
    return json.dumps({**body, **workload.extra_body}).encode()


def conversation_headers(workload: Workload, conversation: str) -> dict[str, str]:
    """Return the headers that name a conversation."""
    if workload.conversation_via == "header":
        return {HEADER: conversation}
    if workload.conversation_via == "baggage":
        return {"baggage": f"{BAGGAGE_KEY}={quote(conversation)}"}
    return {}

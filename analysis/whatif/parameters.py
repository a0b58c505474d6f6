"""What the event model is made of: costs of steps, hops and transfers, and the arrangement that is simulated.

Times are seconds, sizes are bytes. All of it is either measured on a run (calibrate.py) or stated by hand (p5en.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

PUSH, PULL, BIDIRECTIONAL = "push", "pull", "bidirectional"
MODES = (PUSH, PULL, BIDIRECTIONAL)
RANDOM, ROUND_ROBIN, LEAST_LOADED = "random", "round_robin", "least_loaded"
POLICIES = (RANDOM, ROUND_ROBIN, LEAST_LOADED)
PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class StepCost:
    """Time of one engine step, without the connector.

    fixed: of any step. per_prompt_token, per_pair: of computed prompt tokens, and of (token, earlier token) pairs, the
    attention's work. per_sequence, per_context_token: of decoding requests, and of the tokens that they attend to.
    noise: ratios measured / fitted to draw from, mean 1.
    """

    fixed: float = 0.0
    per_prompt_token: float = 0.0
    per_pair: float = 0.0
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    noise: tuple[float, ...] = (1.0,)

    def prefill(self, tokens: int, pairs: float) -> float:
        """Seconds of a step that computes prompt tokens."""
        return self.fixed + self.per_prompt_token * tokens + self.per_pair * pairs

    def decode(self, sequences: int, context: float) -> float:
        """Seconds of a step in which requests decode one token each."""
        return self.fixed + self.per_sequence * sequences + self.per_context_token * context


@dataclass(frozen=True)
class EngineModel:
    """How an engine behaves besides the cost of its steps.

    cost: of its steps. token_budget, sequences: most prompt tokens and requests in a step. block_size: tokens.
    blocks: of its KV cache, None for enough. idle_step: seconds of a step in which nothing is computed.
    submit_at: part of a step after which the worker hands transfers over (start_load_kv): 0 on an accelerator, where it
    comes after the launch, nearly 1 on a CPU, whose launch is the computation.
    """

    cost: StepCost
    token_budget: int = 2048
    sequences: int = 16
    block_size: int = 16
    blocks: int | None = None
    idle_step: float = 0.002
    submit_at: float = 0.0

    def count_blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True)
class Hop:
    """Seconds of an HTTP leg, to draw from, when the engine at its end is asleep and when it is stepping."""

    idle: tuple[float, ...] = (0.0,)
    busy: tuple[float, ...] = (0.0,)

    def draw(self, source: random.Random, *, is_busy: bool) -> float:
        """Draw one; the number of draws does not depend on the state, so that two arrangements stay in step."""
        place = source.random()
        values = self.busy if is_busy else self.idle
        return values[int(place * len(values))]


@dataclass(frozen=True)
class Network:
    """Hops between router and engines, and transfers between engines.

    route: client to router and its choice. to_prefill, to_decode: router to the engine's input queue. from_prefill:
    prompt done to its answer at the router. turnaround: the router between the two legs of a pull. delivery: first
    token to first byte at the client. post_fixed, post_per_byte: the submission call. wire_fixed, wire_per_byte: post
    returned to bytes landed. inline: share of transfers that are over when the post returns (UCX over shared memory).
    notify_at_poll: whether the notification of a transfer that was not is sent when its engine polls it (UCX) or goes
    with the data. registration: D's registration sent to seen by P.
    """

    route: float = 0.0
    to_prefill: Hop = field(default_factory=Hop)
    from_prefill: Hop = field(default_factory=Hop)
    turnaround: float = 0.0
    to_decode: Hop = field(default_factory=Hop)
    delivery: Hop = field(default_factory=Hop)
    post_fixed: float = 0.0
    post_per_byte: float = 0.0
    wire_fixed: float = 0.0
    wire_per_byte: float = 0.0
    inline: float = 0.0
    notify_at_poll: bool = False
    registration: float = 0.001


@dataclass(frozen=True)
class Contention:
    """How much slower an engine steps while another one on the same machine computes: 1.0 is twice the time.

    idle_intensity: how hard an engine that only polls works, of one that computes.
    """

    prefill: float = 0.0
    decode: float = 0.0
    idle_intensity: float = 0.75


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: its name, its value in words, and what it was measured on or assumed from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Parameters:
    """Everything that the model knows of a fleet.

    threshold: fewest tokens that P fetches from D rather than computes again (kv_recompute_threshold). retention:
    seconds that D keeps a finished request's blocks for the next turn, None where the run does not tell.
    """

    prefill: EngineModel
    decode: EngineModel
    network: Network
    contention: Contention = Contention()
    prefill_engines: int = 1
    decode_engines: int = 1
    threshold: int = 64
    retention: float | None = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Arrangement:
    """What is simulated.

    reader_thread: pull posts its reads from a thread of their own. infinite_wire: bytes land as the post returns.
    no_coordination: no hop, no registration, no post, no polling between the engines. late_binding: pull chooses D by
    this policy when the prompt is done; None keeps the recorded D. decoders: number of D, None as recorded.
    threshold, retention: bidirectional, see Parameters; None as recorded.
    """

    mode: str
    reader_thread: bool = False
    infinite_wire: bool = False
    no_coordination: bool = False
    late_binding: str | None = None
    decoders: int | None = None
    threshold: int | None = None
    retention: float | None = None

    def describe(self) -> str:
        """The arrangement in a few words."""
        parts = [self.mode]
        parts += ["reader thread"] * self.reader_thread + ["infinite wire"] * self.infinite_wire
        parts += ["no coordination"] * self.no_coordination
        parts += [f"late binding {self.late_binding}"] if self.late_binding else []
        parts += [f"{self.decoders} decoders"] if self.decoders else []
        parts += [f"threshold {self.threshold}"] if self.threshold is not None else []
        parts += [f"retention {self.retention:g} s"] if self.retention is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Job:
    """One request to replay.

    index: its place in the run. arrival: seconds since the first one. tokens: of its prompt. output: tokens to
    generate. size: bytes of its KV cache. prefill, decode: engines that it was sent to. work: how much longer its
    prompt took than the fitted cost says. cached: prompt tokens in P's own cache. offered: tokens that a fetch from D
    would save. previous: index of the conversation's turn before, which this one follows `gap` seconds after its end.
    """

    index: int
    arrival: float
    tokens: int
    output: int
    size: int
    prefill: int = 0
    decode: int = 0
    work: float = 1.0
    cached: int = 0
    offered: int = 0
    previous: int | None = None
    gap: float = 0.0


def apply(parameters: Parameters, arrangement: Arrangement) -> Parameters:
    """Change the parameters that an arrangement idealises."""
    network = parameters.network
    if arrangement.infinite_wire:
        network = replace(network, wire_fixed=0.0, wire_per_byte=0.0)
    if arrangement.no_coordination:
        network = replace(network, from_prefill=Hop(), turnaround=0.0, to_decode=Hop(), post_fixed=0.0,
                          post_per_byte=0.0, registration=0.0, notify_at_poll=False)  # fmt: skip
    return replace(
        parameters,
        network=network,
        decode_engines=arrangement.decoders or parameters.decode_engines,
        threshold=parameters.threshold if arrangement.threshold is None else arrangement.threshold,
        retention=parameters.retention if arrangement.retention is None else arrangement.retention,
    )


def normalise(ratios: Sequence[float]) -> tuple[float, ...]:
    """Ratios with mean 1; a single 1 where there are none."""
    mean = sum(ratios) / len(ratios) if ratios else 0.0
    return tuple(ratio / mean for ratio in ratios) if mean > 0 else (1.0,)

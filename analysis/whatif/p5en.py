"""A fleet at the time scales of the published push / pull table (docs/what-if.md), as stated parameters.

Nothing here is measured by us. Each figure says whether it is published, derived from a published one, or chosen; two
are fitted to the very table that the model is held against, and are therefore hypotheses about it, not findings.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from .parameters import PUSH, EngineModel, Hop, Job, Network, Parameters, StepCost


@dataclass(frozen=True)
class P5en:
    """Qwen3-32B, one P and one D on a machine of eight accelerators each, EFA between them.

    prefill_*: 16,384 tokens in about 110 ms. Fitted: with 8 requests/s of 16k tokens push can only have a TTFT of
        540 ms when one prompt takes about that long (an M/D/1 queue at 88 % load).
    decode_*: 7 ms with some seven requests of 16k tokens. Published TPOT in push; 2 % of it reads the cache.
    post_per_token: 2.43 us per descriptor, one descriptor per token. Published: 46 ms for 18,880 descriptors.
    read_rate: bytes/s of pull's reads. Fitted to pull's TTFT of 1,744 ms at the hardest point: nothing else in the
        model makes pull wait that long while its TPOT stays at 10.4 ms.
    write_rate: bytes/s of push's writes: a quarter of the 3,200 Gbit/s of a P5en. Chosen.
    bytes_per_token: 64 layers x 8 heads x 128 x 2 (K, V) x 2 bytes. Of the model's configuration.
    hop, turnaround: an HTTP leg in one data centre with its tokenisation. Chosen.
    """

    prefill_fixed: float = 0.006
    prefill_per_token: float = 5.0e-6
    prefill_per_pair: float = 1.7e-10
    decode_fixed: float = 0.0058
    decode_per_request: float = 0.00006
    decode_per_context_token: float = 7e-9
    idle_step: float = 0.0015
    post_per_token: float = 2.43e-6
    read_rate: float = 34.5e9
    write_rate: float = 100e9
    wire_fixed: float = 0.0002
    bytes_per_token: int = 262_144
    hop: float = 0.002
    turnaround: float = 0.0005
    token_budget: int = 16_384
    output: int = 128


DEFAULT = P5en()


def make_parameters(mode: str, fleet: P5en = DEFAULT) -> Parameters:
    """The fleet as parameters of the event model; reads and writes have rates of their own."""
    hop = Hop((fleet.hop,), (fleet.hop,))
    rate = fleet.write_rate if mode == PUSH else fleet.read_rate
    prefill = StepCost(fleet.prefill_fixed, fleet.prefill_per_token, fleet.prefill_per_pair)
    decode = StepCost(
        fixed=fleet.decode_fixed,
        per_sequence=fleet.decode_per_request,
        per_context_token=fleet.decode_per_context_token,
    )
    limits: dict[str, Any] = {
        "token_budget": fleet.token_budget, "sequences": 256, "idle_step": fleet.idle_step, "submit_at": 0.1,
    }  # fmt: skip
    network = Network(
        route=fleet.turnaround, to_prefill=hop, from_prefill=hop, turnaround=fleet.turnaround, to_decode=hop,
        delivery=hop, post_per_byte=fleet.post_per_token / fleet.bytes_per_token, wire_fixed=fleet.wire_fixed,
        wire_per_byte=1 / rate,
    )  # fmt: skip
    return Parameters(EngineModel(prefill, **limits), EngineModel(decode, **limits), network)


def make_jobs(tokens: int, rate: float, count: int, seed: int = 1, fleet: P5en = DEFAULT) -> list[Job]:
    """Poisson arrivals of prompts of one length."""
    source, now, jobs = random.Random(f"{seed}/arrivals"), 0.0, []
    for index in range(count):
        now += source.expovariate(rate)
        jobs.append(Job(index, now, tokens, fleet.output, tokens * fleet.bytes_per_token))
    return jobs

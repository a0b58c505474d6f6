"""Worlds of the event model that tests share: an open fleet without noise, hops or transfers, and ways to fill it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from analysis.whatif.parameters import EngineModel, Hop, Job, Network, Parameters, StepCost
from analysis.whatif.replay import replay

QUIET = StepCost()


def make_parameters(prefill=QUIET, decode=QUIET, network=None, contention=None, **limits):
    """Two engines on machines of their own."""
    engines = {"idle_step": 0.002, **limits}
    made = Parameters(EngineModel(prefill, **engines), EngineModel(decode, **engines), network or Network())
    return replace(made, contention=contention) if contention else made


def make_jobs(count, rate, *, tokens=1000, output=8, seed=1, lengths=None):
    """Poisson arrivals; one length, or lengths to draw from."""
    source, now, jobs = random.Random(seed), 0.0, []
    for index in range(count):
        now += source.expovariate(rate)
        length = source.choice(lengths) if lengths else tokens
        jobs.append(Job(index, now, length, output, length * 1000))
    return jobs


@pytest.fixture
def busy():
    """Parameters and jobs with every part in them: a queue at P, hops, posts, wires, steps of some milliseconds."""
    hop = Hop((0.003, 0.005), (0.004, 0.012))
    network = Network(
        route=0.001,
        to_prefill=hop,
        from_prefill=hop,
        turnaround=0.0005,
        to_decode=hop,
        delivery=hop,
        post_fixed=0.002,
        post_per_byte=2e-9,
        wire_fixed=0.003,
        wire_per_byte=5e-9,
        inline=0.3,
        notify_at_poll=True,
    )
    parameters = make_parameters(
        StepCost(fixed=0.01, per_prompt_token=1e-4, per_pair=1e-8, noise=(0.9, 1.1)),
        StepCost(fixed=0.01, per_sequence=0.002, noise=(0.8, 1.0, 1.2)),
        network,
        submit_at=0.8,
        block_size=32,
    )
    return parameters, make_jobs(120, 4.0, lengths=(200, 1000, 3000))


@pytest.fixture
def run_replay():
    """Replay with one seed."""
    return lambda jobs, parameters, arrangement, seed=1: replay(jobs, parameters, arrangement, seed).requests

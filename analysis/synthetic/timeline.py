"""When everything truly happened: the true times (ns since the run's start) of every request of a synthetic run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fleet import Engine, Fleet
from .parameters import MS, SECOND, Parameters
from .queues import Floats, Ints, first_contacts, next_tick, overlap, serve_in_order


@dataclass
class Workload:
    """What is asked for: arrival (ns), lengths (tokens) and where the router sends it, per request."""

    sent: Floats
    prompt: Ints
    output: Ints
    push: np.ndarray
    prefill: Ints
    decode: Ints
    router: Ints
    fault: Ints  # index into Parameters.faults, -1: none


def draw_workload(p: Parameters, rng: np.random.Generator) -> tuple[Floats, Ints, Ints, Ints]:
    """Draw arrivals (ns), prompt and output lengths (tokens) and faults (index, -1: none): a Poisson process."""
    n = p.requests
    if p.input_lens:
        prompt = rng.choice(np.array(p.input_lens), n)
    else:
        drawn = rng.lognormal(np.log(p.median_prompt_tokens), p.prompt_spread, n)
        prompt = np.clip(drawn, 16, p.max_prompt_tokens).astype(np.int64)
    output = np.clip(rng.lognormal(np.log(p.median_output_tokens), p.output_spread, n), 2, 4096).astype(np.int64)
    rate = p.with_rate(float(prompt.mean()))
    sent = np.cumsum(rng.exponential(SECOND / rate, n))
    fault = np.full(n, -1, dtype=np.int64)
    shares = np.array([f.share for f in p.faults])
    if shares.size:
        chosen = np.searchsorted(np.cumsum(shares), rng.random(n), side="right")
        fault = np.where(chosen < shares.size, chosen, -1)
    return np.rint(sent), prompt, output, fault


def choose_engines(p: Parameters, fleet: Fleet, rng: np.random.Generator, sent: Floats) -> dict[str, Ints]:
    """Send each request to engines of one mode, at random, and past those that are down when it comes."""
    n = len(sent)
    group = rng.integers(0, len(p.modes), n)
    chosen = {"router": np.arange(n) % p.routers}
    for role, engines in (("prefill", fleet.prefill), ("decode", fleet.decode)):
        choice = np.zeros(n, dtype=np.int64)
        for number, mode in enumerate(p.modes):
            members = np.array([place for place, engine in enumerate(engines) if engine.mode == mode])
            place = rng.integers(0, len(members), n)
            for _ in range(len(members)):
                place = np.where(_is_down(engines, members[place], sent), (place + 1) % len(members), place)
            choice = np.where(group == number, members[place], choice)
        chosen[role] = choice
    modes = np.array([mode == "push" for mode in p.modes])
    return chosen | {"push": modes[group]}


def _is_down(engines: tuple[Engine, ...], choice: Ints, at: Floats) -> np.ndarray:
    killed = np.array([np.inf if engine.killed is None else engine.killed for engine in engines])
    back = np.array([engine.restarted + 40 * SECOND for engine in engines])
    down: np.ndarray = (at >= killed[choice]) & (at < back[choice])
    return down


@dataclass
class Truth:
    """True times (ns) by name: per request, or per request and rank where the name begins with r_."""

    at: dict[str, Floats]
    segments: dict[str, Floats]
    shaking: dict[str, np.ndarray]


def simulate(p: Parameters, w: Workload, rng: np.random.Generator) -> Truth:  # noqa: PLR0915 (one line per milestone)
    """Let the requests run: prefill queues, steps, handshakes, wires and polls (see Parameters for what is assumed)."""
    n, ranks = len(w.sent), p.ranks

    def around(ms: float, *shape: int) -> Floats:
        return rng.gamma(4.0, ms * MS / 4.0, shape or (n,))

    def delay(site: str) -> Floats:
        ms = np.array([f.ms if f.site == site else 0.0 for f in p.faults] + [0.0])
        return ms[w.fault] * MS

    def per_rank(values: Floats) -> Floats:
        return np.repeat(values[:, None], ranks, axis=1)

    at: dict[str, Floats] = {"sent": w.sent}
    at["router"] = w.sent + around(0.2)
    at["p_sent"] = at["router"] + around(0.3) + delay("router_dispatch")
    at["p_start"] = at["p_sent"] + around(p.engine_ingress_ms)
    compute = (p.prefill_overhead_ms * MS + w.prompt / p.prefill_tokens_per_s * SECOND) * rng.normal(1, 0.04, n).clip(
        0.8
    )
    at["p_sched"] = serve_in_order(at["p_start"] + 20_000, compute + delay("prefill_compute"), w.prefill)
    at["p_end"] = at["p_sched"] + compute + delay("prefill_compute")
    at["p_answer"] = at["p_end"] + around(0.8)
    at["d_sent"] = np.where(w.push, at["p_sent"] + 50_000, at["p_answer"] + around(0.2)) + delay("handoff_dispatch")
    at["d_start"] = at["d_sent"] + around(p.engine_ingress_ms)
    step = p.decode_step_ms * MS
    phase = rng.uniform(0, step, p.decode_engines)[w.decode]
    at["d_alloc"] = next_tick(at["d_start"], phase, step) + delay("decode_admission")

    # First contact: D shakes hands with P (to read, or to register), in push P with D as well before it writes.
    pairs = p.prefill_engines * p.decode_engines
    pair = w.prefill * p.decode_engines + w.decode
    shape = (n, ranks)
    ready_d = per_rank(at["d_alloc"]) + around(0.2, *shape)
    d_shake, d_shaken, d_first = _shake(p, rng, ready_d, pair, pairs)
    begun = np.maximum(ready_d + around(0.1, *shape), d_shaken + 50_000)
    at["r_send"] = begun + per_rank(delay("registration"))
    at["r_sent"] = at["r_send"] + around(0.15, *shape)
    at["r_seen"] = at["r_sent"] + around(p.network_ms, *shape) + rng.uniform(0, p.writer_poll_ms * MS, shape)
    at["r_blocks"] = per_rank(at["p_end"]) + around(0.2, *shape)
    ready_p = np.maximum(at["r_seen"], at["r_blocks"]) + around(0.1, *shape)
    ready_p = np.where(w.push[:, None], ready_p, np.inf)
    p_shake, p_shaken, p_first = _shake(p, rng, ready_p, pair, pairs)
    push = w.push[:, None]
    dispatched = np.where(push, np.maximum(ready_p + around(0.2, *shape), p_shaken + 50_000), begun)
    at["r_post"] = dispatched + per_rank(delay("dispatch"))
    blocks = np.ceil(w.prompt.astype(np.float64) / p.block_tokens)
    descriptors = per_rank(blocks * p.descriptors_per_block)
    posting = p.post_fixed_ms * MS + descriptors * p.post_us_per_descriptor * 1e3
    at["r_posted"] = at["r_post"] + posting * rng.lognormal(0, 0.1, shape) + per_rank(delay("post"))
    moved = per_rank(w.prompt.astype(np.float64)) * p.kv_bytes_per_token / ranks
    took = moved / p.wire_gb_per_s_per_rank * rng.normal(1, 0.03, shape).clip(0.8)  # 1 GB/s is 1 byte per ns
    link = (w.prefill[:, None] * ranks + np.arange(ranks)[None, :]).ravel()
    on_wire = serve_in_order(at["r_posted"].ravel(), took.ravel(), link).reshape(shape)
    at["r_landed"] = on_wire + took + p.wire_latency_ms * MS + per_rank(delay("wire"))

    # Who posts polls: D once a step in pull, P's writer thread once a millisecond in push.
    poll = p.writer_poll_ms * MS
    by_step = next_tick(at["r_landed"], per_rank(phase), step)
    by_writer = next_tick(at["r_landed"], per_rank(rng.uniform(0, poll, n)), poll)
    at["r_done"] = np.where(push, by_writer, by_step)
    at["r_progress"] = np.maximum(at["r_posted"], at["r_done"] - np.where(push, poll, step))
    heard = rng.uniform(0, np.where(push, poll, 4 * step), shape)
    at["r_notified"] = at["r_landed"] + around(p.network_ms, *shape) + heard
    at["r_reported"] = np.where(
        push, next_tick(at["r_notified"], per_rank(phase), step), at["r_done"] + around(0.05, *shape)
    )
    at["d_told"] = at["r_reported"].max(axis=1) + around(0.3) + delay("completion")
    at["d_sched"] = next_tick(at["d_told"], phase, step)
    at["d_first"] = at["d_sched"] + step * rng.lognormal(0, 0.05, n) + delay("first_decode")
    at["r_first"] = at["d_first"] + around(0.4)
    at["first_byte"] = at["r_first"] + around(0.15)
    at["d_end"] = at["d_first"] + (w.output - 1) * step * rng.lognormal(0, 0.03, n)
    at["d_last"] = at["d_end"] + around(0.4)
    at["end"] = at["d_last"] + around(0.1)
    at["released"] = np.where(w.push, at["r_done"].max(axis=1), at["r_notified"].max(axis=1)) + around(0.5)
    at = {name: np.rint(values) for name, values in at.items()}
    shaking = {
        "d_shake": np.rint(d_shake), "d_shaken": np.rint(d_shaken), "d_begins": d_first,
        "p_shake": np.rint(p_shake), "p_shaken": np.rint(p_shaken), "p_begins": p_first & w.push[:, None],
    }  # fmt: skip
    return Truth(at, measure_segments(at, shaking, w.push), shaking)


def _shake(
    p: Parameters, rng: np.random.Generator, ready: Floats, pair: Ints, pairs: int
) -> tuple[Floats, Floats, np.ndarray]:
    """Handshakes of each rank on its own."""
    parts = [
        first_contacts(ready[:, rank], pair, rng.lognormal(np.log(p.handshake_ms * MS), 0.3, pairs))
        for rank in range(p.ranks)
    ]
    begins, ends, firsts = zip(*parts, strict=True)
    return np.stack(begins, axis=1), np.stack(ends, axis=1), np.stack(firsts, axis=1)


def measure_segments(at: dict[str, Floats], shaking: dict[str, np.ndarray], push: np.ndarray) -> dict[str, Floats]:
    """Return the true length (ns) of every segment of the budget: disjoint, and together the client's TTFT.

    A request's transfer is that of the rank whose bytes landed last.
    """
    slowest = at["r_landed"].argmax(axis=1)[:, None]

    def of_slowest(values: np.ndarray) -> Floats:
        picked: Floats = np.take_along_axis(values, slowest, axis=1)[:, 0]
        return picked

    seen, post, posted, landed = (of_slowest(at[name]) for name in ("r_seen", "r_post", "r_posted", "r_landed"))
    d_shake, d_shaken, p_shake, p_shaken = (
        of_slowest(shaking[name]) for name in ("d_shake", "d_shaken", "p_shake", "p_shaken")
    )
    p_end, d_start, d_alloc = at["p_end"], at["d_start"], at["d_alloc"]
    ready = np.maximum(p_end, seen)
    none = np.zeros_like(p_end)
    begins = np.where(push, ready, d_alloc)
    shaken = np.where(push, overlap(p_shake, p_shaken, ready, post), overlap(d_shake, d_shaken, d_alloc, post))
    early = np.where(push, overlap(d_shake, d_shaken, np.maximum(d_alloc, p_end), ready), 0)
    return {
        "route": at["p_sent"] - at["sent"],
        "prefill_ingress": at["p_start"] - at["p_sent"],
        "prefill_queue": at["p_sched"] - at["p_start"],
        "prefill_compute": p_end - at["p_sched"],
        "handoff_dispatch": np.where(push, 0, d_start - p_end),
        "pairing": np.where(push, np.clip(np.minimum(d_start, ready) - p_end, 0, None), none),
        "decode_admission": np.where(push, np.clip(d_alloc - np.maximum(d_start, p_end), 0, None), d_alloc - d_start),
        "registration": np.where(push, np.clip(seen - np.maximum(d_alloc, p_end), 0, None) - early, none),
        "handshake": shaken + early,
        "dispatch": post - begins - shaken,
        "post": posted - post,
        "wire": landed - posted,
        "completion_lag": at["d_told"] - landed,
        "decode_queue": at["d_sched"] - at["d_told"],
        "first_decode": at["d_first"] - at["d_sched"],
        "delivery": at["first_byte"] - at["d_first"],
    }

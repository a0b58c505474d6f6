"""Budgets of synthetic runs with known effects: no spans, only what a comparison reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from analysis.breakdown import Breakdown
from analysis.run import Run
from analysis.segments import SEGMENTS
from analysis.summary import add_bucket

MEANS_MS = {
    "route": 1.0, "prefill_ingress": 3.0, "prefill_queue": 20.0, "prefill_compute": 120.0, "handoff_dispatch": 8.0,
    "decode_admission": 1.0, "dispatch": 2.0, "post": 1.5, "wire": 12.0, "completion_lag": 9.0, "decode_queue": 5.0,
    "first_decode": 25.0, "delivery": 1.0,
}  # fmt: skip
TPOT_MS = 24.0
PROMPTS = (200, 1000, 3000)

WORKLOAD = {"requests": 0, "rate": 4.0, "seed": 7, "input_lens": list(PROMPTS), "output_len": 16}
MANIFEST = {
    "schema": 1, "created": "2026-01-01T00:00:00+00:00", "mode": "pull",
    "versions": {"vllm": "0.32.0", "nixl": "1.5.1"}, "machine": {"cpu": "synthetic", "cores": 2},
    "model": {"name": "synthetic"}, "cache_policy": {"prefix_caching": False},
    "routing": {"policy": "round-robin"}, "engines": [],
}  # fmt: skip


def make_requests(
    count: int, seed: int, *, rate: float = 4.0, prompts: tuple[int, ...] = PROMPTS
) -> dict[str, np.ndarray]:
    """What the requests themselves are (the same in both runs of a pair): lengths, arrivals (s), difficulty."""
    rng = np.random.default_rng(seed)
    return {
        "prompt_tokens": rng.choice(prompts, count),
        "arrival": np.cumsum(rng.exponential(1 / rate, count)),
        "difficulty": rng.lognormal(0, 0.3, count),
    }


def make_run(
    requests: dict[str, np.ndarray], seed: int, *, name: str = "run", scale: dict[str, float] | None = None,
    tpot_scale: float = 1.0, noise: float = 0.15, memory: float = 0.0, uncertainty_ms: float = 0.0, lost: int = 0,
    seeded: int | None = 7, **conditions: object,
) -> Breakdown:  # fmt: skip
    """Make a run. scale: factor on the mean of a segment. noise: spread (log) of every value of this run alone.

    memory: AR(1) coefficient of the noise over requests in order of arrival, as a queue causes it.
    seeded: seed in the manifest's workload; None leaves the workload out.
    """
    rng = np.random.default_rng(seed)
    count, scale = len(requests["arrival"]), scale or {}
    length = requests["prompt_tokens"] / 1000
    columns: dict[str, np.ndarray] = {}
    for segment, mean in MEANS_MS.items():
        by_length = length if segment in ("prefill_compute", "wire") else 1.0
        luck = np.exp(noise * remember(rng.normal(size=count), memory) - noise**2 / 2)
        columns[segment] = mean * by_length * requests["difficulty"] * luck * scale.get(segment, 1.0)
    residual = rng.normal(0, 0.05, count)
    to_ns = {f"seg_{segment}": (values * 1e6).astype(np.int64) for segment, values in columns.items()}
    ttft = sum(to_ns.values()) + (residual * 1e6).astype(np.int64)
    tpot = TPOT_MS * tpot_scale * np.exp(noise * remember(rng.normal(size=count), memory) - noise**2 / 2)
    frame = pl.DataFrame(
        {
            "request_key": [f"req-{number:05d}" for number in range(count)],
            "prompt_tokens": requests["prompt_tokens"],
            "ttft_start": (1_790_000_000 * 10**9 + requests["arrival"] * 1e9).astype(np.int64),
            "ttft": ttft,
            "tpot_ns": (tpot * 1e6).astype(np.int64),
            **to_ns,
            "residual": (residual * 1e6).astype(np.int64),
            "uncertainty_ns": np.full(count, int(uncertainty_ms * 1e6)),
            "unc_wire": np.full(count, int(uncertainty_ms * 1e6)),
            "unc_completion_lag": np.full(count, int(uncertainty_ms * 1e6)),
            "disorder": np.zeros(count, np.int64),
        }
    ).with_columns(
        *(pl.lit(None, pl.Int64).alias(f"seg_{segment}") for segment in SEGMENTS if segment not in columns),
        request_id=pl.col("request_key"),
        ttft_source=pl.lit("router"),
        mode=pl.lit(str(conditions.get("mode", "pull"))),
    )
    sent = {} if seeded is None else {"workloads": [{**WORKLOAD, "seed": seeded, "requests": count}]}
    run = Run(name, (Path("synthetic"),), {**MANIFEST, **sent, **conditions})
    summary = {"requests": count + lost, "unfinished": {"count": lost}, "modes": {}}
    return Breakdown(run, add_bucket(frame), frame.clear(), summary)


def remember(noise: np.ndarray, memory: float) -> np.ndarray:
    """Turn white noise into an AR(1) process of the same spread."""
    if not memory:
        return noise
    found = noise.copy()
    for place in range(1, len(found)):
        found[place] = memory * found[place - 1] + np.sqrt(1 - memory**2) * noise[place]
    return found

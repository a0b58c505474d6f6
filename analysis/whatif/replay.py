"""Jobs + parameters + arrangement -> simulated requests with their segments, and what each engine had to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import polars as pl

from ..segments import SEGMENTS
from .model.fleet import EngineLoad, Fleet
from .model.request import Request
from .parameters import PUSH, Arrangement, Job, Parameters

Progress = Callable[[int], None]

PATH = (
    ("route", "r_prefill_start"), ("prefill_ingress", "p_start"), ("prefill_queue", "p_sched"),
    ("prefill_compute", "p_end"), ("handoff_dispatch", "d_start"), ("decode_admission", "d_alloc"),
    ("dispatch", "post_start"), ("post", "post_end"), ("wire", "landed"), ("completion_lag", "d_told"),
    ("decode_queue", "d_sched"), ("first_decode", "d_first"), ("delivery", "r_first_byte"),
)  # fmt: skip
MEETING = ("pairing", "decode_admission", "registration")


@dataclass(frozen=True)
class Replay:
    """One replay.

    requests: a row per job: index, prefill, decode (engines), ttft, tpot (s), seg_<segment> (s; sum is ttft).
    loads: what each engine had to hold, mean over replays.
    seconds: simulated time.
    """

    arrangement: Arrangement
    requests: pl.DataFrame
    loads: tuple[EngineLoad, ...]
    seconds: float


def replay(
    jobs: Sequence[Job], parameters: Parameters, arrangement: Arrangement, seed: int, progress: Progress | None = None
) -> Replay:
    """Simulate all jobs to their last token."""
    fleet = Fleet(parameters, arrangement, seed)
    requests = [fleet.send(job) for job in jobs]
    shown = 0
    while fleet.finished < len(requests):
        fleet.env.step()
        if progress and fleet.finished - shown >= 100:
            progress(fleet.finished - shown)
            shown = fleet.finished
    if progress:
        progress(fleet.finished - shown)
    is_push = arrangement.mode == PUSH
    rows = [{"index": one.job.index, "prefill": one.prefill, "decode": one.decode, **measure(one, is_push=is_push)}
            for one in requests]  # fmt: skip
    schema = {"index": pl.Int64, "prefill": pl.Int64, "decode": pl.Int64, "ttft": pl.Float64, "tpot": pl.Float64}
    schema |= {f"seg_{name}": pl.Float64 for name in SEGMENTS}
    return Replay(arrangement, pl.DataFrame(rows, schema=schema), tuple(fleet.list_loads()), fleet.env.now)


def measure(request: Request, *, is_push: bool) -> dict[str, float | None]:
    """TTFT, TPOT and segments of a simulated request (s), by the rules of analysis/budget.py."""
    at = request.at
    segments: dict[str, float] = {}
    before = at["r_start"]
    for segment, milestone in PATH:
        if is_push and segment in ("handoff_dispatch", "decode_admission"):
            continue
        if is_push and segment == "dispatch":
            segments |= _meet(at)
            before = max(at["p_end"], at["reg_seen"])
        segments[segment] = at[milestone] - before
        before = at[milestone]
        if segment == "prefill_queue" and "p_told" in at:
            segments["readback"] = at["p_told"] - at["p_alloc"]
            segments[segment] -= segments["readback"]
    steps = request.job.output - 1
    return {
        "ttft": at["r_first_byte"] - at["r_start"],
        "tpot": (at["d_end"] - at["d_first"]) / steps if steps > 0 else None,
        **{f"seg_{name}": value for name, value in segments.items()},
    }


def _meet(at: dict[str, float]) -> dict[str, float]:
    """Push: the time from the finished prompt to the seen registration, by what D did then; 0 where P came last."""
    low, high = at["p_end"], max(at["p_end"], at["reg_seen"])
    edges = (low, at["d_start"], at["d_alloc"], at["reg_seen"])
    inside = [min(max(edge, low), high) for edge in edges]
    return {name: b - a for name, a, b in zip(MEETING, inside, inside[1:], strict=False)}


def replay_often(
    jobs: Sequence[Job], parameters: Parameters, arrangement: Arrangement, seeds: Iterable[int],
    progress: Progress | None = None,
) -> list[Replay]:  # fmt: skip
    """Replay once per seed."""
    return [replay(jobs, parameters, arrangement, seed, progress) for seed in seeds]


def average_loads(replays: Sequence[Replay]) -> list[EngineLoad]:
    """Mean of what each engine had to hold, over replays of one arrangement; maxima are the median replay's."""
    averaged = []
    for same in zip(*(one.loads for one in replays), strict=True):
        count = len(same)
        values = {
            field.name: sorted(getattr(one, field.name) for one in same)[count // 2]
            if field.name.endswith("_max")
            else sum(getattr(one, field.name) for one in same) / count
            for field in fields(EngineLoad)
            if field.name != "engine"
        }
        averaged.append(EngineLoad(engine=same[0].engine, **values))
    return averaged

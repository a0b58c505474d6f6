"""A run and an arrangement -> what the arrangement would have done to each request of the run.

Predicted = recorded + (simulated other - simulated own), request by request: what the model gets wrong in both
arrangements cancels. The simulated distribution by itself stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ..breakdown import Breakdown
from ..errors import KvlensError
from ..segments import SEGMENTS
from ..summary import add_bucket
from .calibrate import calibrate, list_jobs
from .model.fleet import EngineLoad
from .observations import NS, Observations
from .parameters import BIDIRECTIONAL, MODES, Arrangement, Job, Parameters
from .replay import Progress, Replay, average_loads, replay_often
from .reuse import Reuse

LOADS = ("1", "2", "3-4", "5-8", ">8")
LOAD_EDGES = (1, 2, 4, 8)
KINDS = ("ttft", "tpot")


@dataclass(frozen=True)
class Prediction:
    """What one arrangement would have done to a run.

    requests: a row per replayed request: request_id, prompt_tokens, bucket, in_flight, load, and in s recorded_<kind>,
    own_<kind>, other_<kind> (mean over replays), predicted_<kind>, and seg_<segment> of recorded_, own_ and other_.
    ranges: kind -> quantile -> (lowest, highest) of the prediction over single replays.
    """

    run: str
    own: Arrangement
    other: Arrangement
    parameters: Parameters
    requests: pl.DataFrame
    ranges: dict[str, dict[str, tuple[float, float]]]
    own_loads: list[EngineLoad]
    other_loads: list[EngineLoad]
    replays: int
    left_out: int
    notes: tuple[str, ...]


def find_mode(breakdown: Breakdown) -> str:
    """The mode in which a run was recorded. Raises KvlensError when it is unknown or not one."""
    found = breakdown.budgets["mode"].unique().to_list() if breakdown.budgets.height else []
    if len(found) != 1 or found[0] not in MODES:
        modes = " and ".join(sorted(map(str, found))) or "no known mode"
        raise KvlensError(
            f"{breakdown.run.name} is recorded in {modes}: one is needed",
            "pass the run of one connector: push, pull or bidirectional",
        )
    return str(found[0])


def predict(
    breakdown: Breakdown, observed: Observations, other: Arrangement, *, seed: int, replays: int, limit: int,
    reuse: Reuse | None = None,
    overrides: dict[str, Any] | None = None, progress: Progress | None = None,
) -> Prediction:  # fmt: skip
    """Predict. Raises KvlensError when the run holds too little to calibrate on or no request to replay."""
    own = Arrangement(find_mode(breakdown))
    check_reuse(own, other, reuse)
    parameters = override(calibrate(observed, reuse), overrides or {})
    jobs = list_jobs(observed, parameters, reuse)
    if not jobs:
        raise KvlensError(
            f"no request of {breakdown.run.name} was seen from arrival to last token with its transfer",
            "load the connector on both engines and record with `kvlens lab run`, or drain before stopping",
        )
    left_out, jobs = breakdown.budgets.height - min(len(jobs), limit), jobs[:limit]
    check_fit(jobs, parameters)
    seeds = range(seed, seed + replays)
    before = replay_often(jobs, parameters, own, seeds, progress)
    after = replay_often(jobs, parameters, other, seeds, progress)
    requests = combine(breakdown.budgets, before, after)
    return Prediction(
        run=breakdown.run.name, own=own, other=other, parameters=parameters, requests=requests,
        ranges=find_ranges(requests, after), own_loads=average_loads(before), other_loads=average_loads(after),
        replays=replays, left_out=left_out, notes=tuple(list_notes(parameters, own, other)),
    )  # fmt: skip


def check_reuse(own: Arrangement, other: Arrangement, reuse: Reuse | None) -> None:
    """Refuse what a run without decisions or leases cannot tell. Raises KvlensError."""
    if BIDIRECTIONAL not in (own.mode, other.mode):
        return
    if reuse is None:
        raise KvlensError(
            "no decision spans: what P could have read back in each turn is unknown",
            "record with the connector that has them (NixlBidirectionalConnector, KVLENS_DETAIL=full) and turns > 1",
        )
    if other.retention is not None and reuse.limits["retention"] is None:
        raise KvlensError(
            "how long D keeps blocks in this run is unknown: no lease has a time to live and there is no manifest",
            "record with `kvlens lab run --mode bidirectional`, or put the engines' connector into manifest.json",
        )


def override(parameters: Parameters, blocks: dict[str, Any]) -> Parameters:
    """Set the blocks of a role's KV cache: role -> blocks, None to leave them."""
    changes = {role: replace(getattr(parameters, role), blocks=count) for role, count in blocks.items() if count}
    return replace(parameters, **changes)


def check_fit(jobs: Sequence[Job], parameters: Parameters) -> None:
    """Refuse a cache into which one request does not fit: it would wait for ever. Raises KvlensError."""
    longest = max(jobs, key=lambda job: job.tokens + job.output)
    for role, tokens in (("prefill", longest.tokens), ("decode", longest.tokens + longest.output)):
        model = getattr(parameters, role)
        needed = model.count_blocks(tokens)
        if model.blocks is not None and model.blocks < needed:
            raise KvlensError(
                f"the longest request needs {needed} blocks on the {role} engine, which has {model.blocks}",
                f"--{role}-blocks {needed} or more",
                exit_code=2,
            )


def combine(budgets: pl.DataFrame, before: Sequence[Replay], after: Sequence[Replay]) -> pl.DataFrame:
    """Join what was recorded with the means of the replays, and predict."""
    names = [f"seg_{name}" for name in SEGMENTS]
    recorded = add_in_flight(add_bucket(budgets)).select(
        pl.col("row").cast(pl.Int64).alias("index"), "request_id", "prompt_tokens", "bucket", "in_flight", "load",
        recorded_ttft=pl.col("ttft") * NS, recorded_tpot=pl.col("tpot_ns") * NS,
        **{f"recorded_{name}": pl.col(name) * NS for name in names},
    )  # fmt: skip
    joined = recorded.join(_average(before, "own"), on="index").join(_average(after, "other"), on="index").sort("index")
    return joined.with_columns(
        # A request cannot get faster than the fastest that the other arrangement was simulated to serve it.
        pl.max_horizontal(
            pl.col(f"recorded_{kind}") + pl.col(f"other_{kind}") - pl.col(f"own_{kind}"), f"other_least_{kind}"
        ).alias(f"predicted_{kind}")
        for kind in KINDS
    )


def _average(replays: Sequence[Replay], name: str) -> pl.DataFrame:
    columns = [*KINDS, *(f"seg_{segment}" for segment in SEGMENTS)]
    whole = pl.concat([one.requests for one in replays]).group_by("index")
    return whole.agg(
        *(pl.col(column).mean().alias(f"{name}_{column}") for column in columns),
        *(pl.col(kind).min().alias(f"{name}_least_{kind}") for kind in KINDS),
    )


def add_in_flight(budgets: pl.DataFrame) -> pl.DataFrame:
    """Add in_flight (requests between arrival and last token when one arrived, itself included) and load, its range."""
    begun, ended = budgets["ttft_start"], pl.max_horizontal("d_end", "ttft_end", "r_end")
    changes = pl.concat([
        budgets.select(at=begun, change=pl.lit(1)), budgets.select(at=ended, change=pl.lit(-1)),
    ]).sort("at", "change").with_columns(in_flight=pl.col("change").cum_sum().cast(pl.Int64))  # fmt: skip
    arrivals = changes.filter(pl.col("change") == 1).select(ttft_start="at", in_flight="in_flight").unique("ttft_start")
    name = pl.lit(LOADS[-1])
    for edge, text in zip(reversed(LOAD_EDGES), reversed(LOADS[:-1]), strict=True):
        name = pl.when(pl.col("in_flight") <= edge).then(pl.lit(text)).otherwise(name)
    return budgets.join(arrivals, on="ttft_start", how="left", maintain_order="left").with_columns(load=name)


def find_ranges(requests: pl.DataFrame, after: Sequence[Replay]) -> dict[str, dict[str, tuple[float, float]]]:
    """Lowest and highest p50, p90 and p99 of the prediction, when each single replay of the other one is taken."""
    ranges: dict[str, dict[str, tuple[float, float]]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        base = requests.select("index", f"recorded_{kind}", f"own_{kind}", f"other_least_{kind}")
        change = pl.col(f"recorded_{kind}") + pl.col(kind) - pl.col(f"own_{kind}")
        singles = [
            base.join(one.requests, on="index").select(pl.max_horizontal(change, f"other_least_{kind}")).to_series()
            for one in after
        ]
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            found = [value for one in singles if (value := one.quantile(part, "linear")) is not None]
            if found:
                ranges[kind][name] = (min(found), max(found))
    return ranges


def list_notes(parameters: Parameters, own: Arrangement, other: Arrangement) -> list[str]:
    """What the model assumes besides its parameters."""
    notes = [
        "a request reserves the blocks of its prompt and its whole output; preemption is not modelled",
        "transfers of one prefill engine share its link one after the other; reads and writes cost the same",
        "arrivals stay as recorded: a client that waits for its answer before it sends the next one would adapt",
    ]
    if parameters.prefill.blocks is None or parameters.decode.blocks is None:
        notes.append("a KV cache of unknown size never refuses: see --prefill-blocks and --decode-blocks")
    if other.late_binding and (other.decoders or parameters.decode_engines) == 1:
        notes.append("with one decode engine --late-binding has nothing to choose from (see --decoders)")
    if own.mode == BIDIRECTIONAL:
        notes += [
            "a turn follows the one before by the recorded gap, so earlier answers bring later questions forward",
            "what a fetch would save is what D offered then; blocks that P declined stay on D until their time is over",
        ]
    if other.mode != own.mode and other.mode == "push":
        notes.append("push: the share of writes that are over when their post returns is taken from the recorded reads")
    return notes

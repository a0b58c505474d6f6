"""Measure the model's parameters on a recorded run, and say of each where it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from ..errors import KvlensError
from .coarse import list_coarse_decodes, list_coarse_prefills
from .fit import Fit, fit_costs, is_clearly_better
from .hops import measure_hops
from .limits import read_limits
from .observations import NS, Floats, Observations
from .parameters import (
    DECODE,
    PREFILL,
    Contention,
    EngineModel,
    Job,
    Network,
    Parameters,
    Source,
    StepCost,
    normalise,
)
from .reuse import Reuse
from .transfers import measure_transfers

MIN_STEPS = 8
"""Fewer steps than this give no cost."""
DEFAULT_IDLE_STEP = 0.003
"""Seconds of an idle step where none was recorded: 1 ms of sleep (EngineCore._process_engine_step) and the loop."""
LAB = Contention(prefill=0.1, decode=0.2)
"""Two engines on one machine, where a run cannot tell: about what the lab's pull runs gave (docs/what-if.md)."""
SHARED_CORE = 0.5
"""A thread that waits for a core for more than this per second of CPU time shares it with the other engine's."""
NEEDED = ("p_start", "p_sched", "p_end", "d_start", "d_alloc", "post_start", "post_end", "landed", "d_told", "d_sched",
          "d_first", "d_end", "prompt_tokens", "output_tokens", "bytes")  # fmt: skip


def calibrate(observed: Observations, reuse: Reuse | None = None) -> Parameters:
    """Measure all parameters. Raises KvlensError when the run has no steps to measure costs on."""
    observed, told_coarse = fill_steps(observed)
    for role, steps in ((PREFILL, observed.prefill_steps), (DECODE, observed.decode_steps)):
        if steps.height < MIN_STEPS:
            raise KvlensError(
                f"{steps.height} {role} steps or requests to measure a cost on, {MIN_STEPS} needed",
                "record at least a dozen requests with both engines instrumented (KVLENS_DETAIL=full, the default)",
            )
    is_shared = share_machine(observed.requests)
    fits = {PREFILL: _fit_prefill(observed, is_shared), DECODE: _fit_decode(observed, is_shared)}
    usual = {
        PREFILL: _fit_prefill(observed, is_shared, LAB.prefill), DECODE: _fit_decode(observed, is_shared, LAB.decode)
    }  # fmt: skip
    contention, spoken = choose_contention(observed, fits, usual, is_shared=is_shared)
    fits = {
        PREFILL: _fit_prefill(observed, is_shared, contention.prefill),
        DECODE: _fit_decode(observed, is_shared, contention.decode),
    }
    engines, sources = {}, [spoken, *told_coarse]
    for role, fit in fits.items():
        engines[role], told = _make_engine(observed, role, fit)
        sources += told
    if told_coarse:
        # The costs are those of whole prompts, so a step of the model is a whole prompt too.
        longest = int(observed.prefill_steps["tokens"].max())  # type: ignore[arg-type]
        engines[PREFILL] = replace(engines[PREFILL], token_budget=longest, sequences=1)
    network, told = _make_network(observed)
    names = {role: observed.requests[f"{role[0]}_engine"].drop_nulls().n_unique() for role in (PREFILL, DECODE)}
    return Parameters(
        prefill=engines[PREFILL], decode=engines[DECODE], network=network, contention=contention,
        prefill_engines=max(names[PREFILL], 1), decode_engines=max(names[DECODE], 1),
        sources=(*sources, *told, *(reuse.sources if reuse else ())), **(reuse.limits if reuse else {}),
    )  # fmt: skip


def fill_steps(observed: Observations) -> tuple[Observations, list[Source]]:
    """Let whole requests stand for steps where a run has no step records."""
    if observed.prefill_steps.height >= MIN_STEPS and observed.decode_steps.height >= MIN_STEPS:
        return observed, []
    coarse = replace(
        observed,
        prefill_steps=list_coarse_prefills(observed.requests),
        decode_steps=list_coarse_decodes(observed.requests),
    )
    words = "whole requests stand for steps, one prompt each; hand-over at their begin, as on an accelerator"
    return coarse, [Source("step records", "none", words)]


def share_machine(requests: pl.DataFrame) -> bool:
    """Whether P and D ran on one machine: processes of one boot."""
    return bool((requests["p_boot"] == requests["d_boot"]).fill_null(value=False).all())


def list_jobs(observed: Observations, parameters: Parameters, reuse: Reuse | None = None) -> list[Job]:
    """The requests to replay, in order of arrival: those that went the whole way over a transfer."""
    whole = observed.requests.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in NEEDED)).sort(
        "ttft_start"
    )
    work = _measure_work(fill_steps(observed)[0], parameters)
    places = {role: {name: place for place, name in enumerate(sorted(whole[f"{role[0]}_engine"].unique()))}
              for role in (PREFILL, DECODE)}  # fmt: skip
    turns = {row: rest for row, *rest in reuse.turns.iter_rows()} if reuse else {}
    kept = set(whole["row"])
    start = whole["ttft_start"].min()
    assert isinstance(start, int) or start is None
    jobs = []
    for row in whole.iter_rows(named=True):
        previous, gap, offered = turns.get(row["row"], (None, 0.0, 0))
        jobs.append(Job(
            index=row["row"], arrival=(row["ttft_start"] - start) * NS, tokens=max(row["prompt_tokens"], 1),
            output=max(row["output_tokens"], 1), size=row["bytes"],
            prefill=places[PREFILL][row["p_engine"]], decode=places[DECODE][row["d_engine"]],
            work=work.get(row["p_id"], 1.0), cached=row["cached_tokens"] or 0, offered=offered, gap=gap,
            previous=previous if previous in kept else None,
        ))  # fmt: skip
    return jobs


def _fit_prefill(observed: Observations, is_shared: bool, slowdown: float | None = None) -> Fit:
    steps = observed.prefill_steps
    columns = np.stack([np.ones(steps.height), steps["tokens"].to_numpy(), steps["pairs"].to_numpy()], axis=1)
    return fit_costs(columns.astype(float), steps["seconds"].to_numpy(), _overlap(steps, is_shared), slowdown)


def _fit_decode(observed: Observations, is_shared: bool, slowdown: float | None = None) -> Fit:
    steps = observed.decode_steps
    columns = np.stack([np.ones(steps.height), steps["sequences"].to_numpy(), steps["context"].to_numpy()], axis=1)
    return fit_costs(columns.astype(float), steps["seconds"].to_numpy(), _overlap(steps, is_shared), slowdown)


def _overlap(steps: pl.DataFrame, is_shared: bool) -> Floats:
    overlap = steps["overlap"].to_numpy()
    return overlap if is_shared else np.zeros_like(overlap)


def choose_contention(
    observed: Observations, fits: dict[str, Fit], usual: dict[str, Fit], *, is_shared: bool
) -> tuple[Contention, Source]:
    """Choose by what tells most: steps with and without the other engine, else time without a core, else the lab's.

    fits: with the slowdown that fits best. usual: with the lab's; a slowdown that explains the steps hardly
    better is noise and not taken: it would stretch every step of an arrangement in which the other engine never rests.
    """
    if not is_shared:
        return Contention(), Source("contention", "none", "P and D ran on different machines")
    values: dict[str, float] = {}
    origins: list[str] = []
    for role, steps in ((PREFILL, observed.prefill_steps), (DECODE, observed.decode_steps)):
        found, waited = fits[role].slowdown, observed.waited.get(role, 0.0)
        beside = float(np.average(steps["overlap"].to_numpy(), weights=steps["seconds"].to_numpy()))
        if found is not None and is_clearly_better(fits[role], usual[role]):
            values[role], origin = found, "measured on steps with and without the other engine"
        elif found is None and waited > SHARED_CORE and beside > 0:
            values[role], origin = waited / beside, f"measured: {waited:.1f} s without a core per second of CPU"
        else:
            values[role], origin = getattr(LAB, role), "assumed as on the lab's machine"
            if found is not None:
                origin += f" (x{1 + found:.2f} fits best, but {steps.height} steps do not tell the two apart)"
        origins.append(f"{role} {origin}")
    words = f"P's steps x{1 + values[PREFILL]:.2f}, D's x{1 + values[DECODE]:.2f} while the other computes"
    return Contention(**values), Source("contention", words, "; ".join(origins))


def _make_engine(observed: Observations, role: str, fit: Fit) -> tuple[EngineModel, list[Source]]:
    limits, sources = read_limits(observed.manifest, role)
    idle, idle_origin = _measure_idle_step(observed, role)
    submit = _measure_submit_at(observed, role)
    # The mean of the ratios belongs to the cost, what is left is noise around it.
    costs = fit.costs * float(fit.ratios.mean())
    if role == PREFILL:
        # A prompt's own deviation is kept with the request (Job.work), so that it is the same in every arrangement.
        cost = StepCost(fixed=costs[0], per_prompt_token=costs[1], per_pair=costs[2])
        words = f"{costs[0] * 1e3:.1f} ms + {costs[1] * 1e6:.1f} us/token + {costs[2] * 1e9:.1f} ns/pair"
    else:
        noise = normalise(tuple(fit.ratios))
        cost = StepCost(fixed=costs[0], per_sequence=costs[1], per_context_token=costs[2], noise=noise)
        words = f"{costs[0] * 1e3:.1f} ms + {costs[1] * 1e3:.2f} ms/request + {costs[2] * 1e6:.2f} us/context token"
    low, high = np.quantile(fit.ratios, (0.1, 0.9))
    sources += [
        Source(f"{role} step", words, f"measured: {len(fit.ratios)} steps, 10..90 % at {low:.2f}..{high:.2f} of it"),
        Source(f"{role} idle step", f"{idle * 1e3:.1f} ms", idle_origin),
        Source(f"{role} hand-over at", f"{submit:.0%} of a step", "measured: begin of start_load_kv"),
    ]
    return EngineModel(cost=cost, idle_step=idle, submit_at=submit, **limits), sources


def _measure_idle_step(observed: Observations, role: str) -> tuple[float, str]:
    rows = observed.steps.filter(pl.col("role") == role, pl.col("requests") == 0, pl.col("steps") >= 2)
    if rows.is_empty():
        return DEFAULT_IDLE_STEP, "assumed: no idle step was recorded"
    each = (rows["duration"] / rows["steps"]).median()
    count = int(rows["steps"].sum())
    assert isinstance(each, float)
    return max(each * NS, 1e-4), f"measured: {count} idle steps"


def _measure_submit_at(observed: Observations, role: str) -> float:
    rows = observed.list_stepping(role).filter(pl.col("submit_begin").is_not_null())
    part = ((pl.col("submit_begin") - pl.col("begin")) / (pl.col("duration") - pl.col("submit")).clip(1)).clip(0.0, 1.0)
    value = rows.select(part.median()).item()
    return float(value) if value is not None else 0.0


def _make_network(observed: Observations) -> tuple[Network, list[Source]]:
    hops, hop_sources = measure_hops(observed)
    transfers, transfer_sources = measure_transfers(observed)
    return Network(**hops, **transfers), [*hop_sources, *transfer_sources]


def _measure_work(observed: Observations, parameters: Parameters) -> dict[str, float]:
    """How much longer each prompt took than the fitted cost says: the mean over its steps, weighted by tokens."""
    steps, slow = observed.prefill_steps, parameters.contention.prefill
    total: dict[str, float] = {}
    count: dict[str, int] = {}
    for row in steps.iter_rows(named=True):
        fitted = parameters.prefill.cost.prefill(row["tokens"], row["pairs"]) * (1 + slow * row["overlap"])
        for name, tokens in zip(row["ids"], row["parts"], strict=True):
            total[name] = total.get(name, 0.0) + tokens * row["seconds"] / fitted
            count[name] = count.get(name, 0) + tokens
    return {name: total[name] / count[name] for name in total if count[name]}

"""What a recorded run tells the model: its requests, its engine steps with what was in them, and who was awake when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..breakdown import Breakdown
from ..clocks.correct import correct_rows, list_engine_boots
from ..source import Session
from ..tpot import DECODE as DECODING
from ..tpot import prepare_steps
from .parameters import DECODE, PREFILL

Floats = NDArray[np.float64]
NS = 1e-9
STRETCH_GAP_NS = 1_500_000
"""Two steps closer than this are one stretch: the loop's own work lies between them."""
SUBMITTED_NS = 1_000_000
"""A step whose hand-over took this long posted something."""
IDLE_INTENSITY = 0.75
"""How hard an engine that only polls works, of one that computes: its idle step sleeps 1 ms of about 3 (EngineCore)."""


@dataclass(frozen=True)
class Observations:
    """One run.

    requests: rows of Breakdown.budgets. steps: rows of tpot.prepare_steps. prefill_steps, decode_steps: see
    list_prefill_steps and list_decode_steps. manifest: conditions. waited: role -> seconds that the thread which
    computes was ready and had no core, per second of its CPU time.
    """

    requests: pl.DataFrame
    steps: pl.DataFrame
    prefill_steps: pl.DataFrame
    decode_steps: pl.DataFrame
    manifest: dict[str, Any]
    waited: dict[str, float]

    def list_stepping(self, role: str) -> pl.DataFrame:
        """Steps of a role in which something was computed."""
        return self.steps.filter(pl.col("role") == role, pl.col("requests") > 0)


def observe(session: Session, breakdown: Breakdown) -> Observations:
    """Read a run."""
    members = session.query("step_members")
    # On the clock of the budgets: legs are held against the steps of engines on other hosts.
    steps = correct_rows(
        prepare_steps(session.query("steps"), members), list_engine_boots(breakdown.budgets), breakdown.relation
    )
    awake = {role: [list_stretches(steps, role, idle=idle) for idle in (False, True)] for role in (PREFILL, DECODE)}
    return Observations(
        requests=breakdown.budgets,
        steps=steps,
        prefill_steps=list_prefill_steps(steps, members, breakdown.budgets, awake[DECODE]),
        decode_steps=list_decode_steps(steps, members, breakdown.budgets, awake[PREFILL]),
        manifest=breakdown.run.manifest,
        waited=measure_waiting(session.query("threads")),
    )


def measure_waiting(threads: pl.DataFrame) -> dict[str, float]:
    """Measure by role how long the workers' computing thread waited for a core, per second of CPU time."""
    own = threads.filter(pl.col("process") == "worker", pl.col("kind") == "engine", pl.col("cpu_ns") > 0)
    sums = own.group_by("role").agg(pl.col("wait_ns", "cpu_ns").sum())
    return {role: waited / spent for role, waited, spent in sums.select("role", "wait_ns", "cpu_ns").iter_rows()}


def list_prefill_steps(
    steps: pl.DataFrame, members: pl.DataFrame, requests: pl.DataFrame, other: Sequence[Floats]
) -> pl.DataFrame:
    """Steps of P that computed prompts: seconds, overlap with D, tokens, pairs (token, earlier token), ids, parts.

    What each prompt got of a step's tokens is not recorded; vLLM's order tells: begun ones first, then by arrival.
    """
    fresh = pl.col("prompt_tokens") - pl.sum_horizontal(pl.col("cached_tokens", "rb_tokens").fill_null(0))
    known = requests.select("p_id", "p_start", "prompt_tokens", fresh.alias("fresh")).drop_nulls("p_id")
    order = {row[0]: row[1:] for row in known.iter_rows()}
    own = steps.filter(pl.col("role") == PREFILL, pl.col("prompt_tokens") > 0)
    inside = members.filter(pl.col("kind") != DECODING).group_by("batch", "row").agg(ids=pl.col("request_id"))
    rows, left = [], {name: tokens for name, (*_, tokens) in order.items()}
    for step in own.join(inside, on=["batch", "row"]).sort("begin").iter_rows(named=True):
        ids = sorted(
            (one for one in step["ids"] if left.get(one)), key=lambda one: (left[one] == order[one][2], order[one][0])
        )
        budget, pairs, parts = step["prompt_tokens"], 0.0, []
        for one in ids:
            tokens = min(left[one], budget)
            pairs += tokens * (order[one][1] - left[one] + tokens / 2)
            left[one] -= tokens
            budget -= tokens
            parts.append(tokens)
        if budget == 0:  # else a warm-up request or a lost one was in it as well
            rows.append((step["begin"], step["finish"], step["prompt_tokens"], pairs, ids, parts))
    schema: dict[str, Any] = {"begin": pl.Int64, "finish": pl.Int64, "tokens": pl.Int64, "pairs": pl.Float64,
              "ids": pl.List(pl.String), "parts": pl.List(pl.Int64)}  # fmt: skip
    return _add_overlap(pl.DataFrame(rows, schema=schema, orient="row"), other)


def list_decode_steps(
    steps: pl.DataFrame, members: pl.DataFrame, requests: pl.DataFrame, other: Sequence[Floats]
) -> pl.DataFrame:
    """Steps of D without a connector submission: seconds, overlap with P, sequences, context (tokens attended).

    Steps that posted reads are left out: the post is a part of its own.
    """
    lengths = requests.select(request_id="d_id", length=pl.col("prompt_tokens") + pl.col("output_tokens") // 2)
    inside = (
        members.join(lengths, on="request_id").group_by("batch", "row").agg(
            sequences=pl.len().cast(pl.Int64), context=pl.col("length").sum()
        )
    )  # fmt: skip
    own = steps.filter(pl.col("role") == DECODE, pl.col("requests") > 0, pl.col("submit") < SUBMITTED_NS)
    rows = own.join(inside, on=["batch", "row"]).filter(
        pl.col("sequences") == pl.col("requests"), pl.col("prompt_tokens") <= pl.col("sequences")
    )
    # In order, as the noise is drawn by place: a join's order differs from one process to the next.
    ordered = rows.sort("begin", "batch", "row")
    return _add_overlap(ordered.select("begin", "finish", "sequences", "context", gap=pl.col("gap") * NS), other)


def list_stretches(steps: pl.DataFrame, role: str, *, idle: bool) -> Floats:
    """Stretches in which engines of a role computed, or stepped idly: [begin, finish] in ns, merged and in order."""
    own = steps.filter(pl.col("role") == role, (pl.col("requests") == 0) == idle).sort("begin")
    merged: list[list[int]] = []
    for begin, finish in own.select("begin", "finish").iter_rows():
        if merged and begin <= merged[-1][1] + STRETCH_GAP_NS:
            merged[-1][1] = max(merged[-1][1], finish)
        else:
            merged.append([begin, finish])
    return np.array(merged, dtype=np.float64).reshape(-1, 2)


def _add_overlap(rows: pl.DataFrame, other: Sequence[Floats]) -> pl.DataFrame:
    """Add seconds, and how hard the other engine worked meanwhile: 1 computing, IDLE_INTENSITY polling."""
    begin, finish = rows["begin"].to_numpy().astype(float), rows["finish"].to_numpy().astype(float)
    length = np.maximum(finish - begin, 1.0)
    computed, idled = (
        np.clip((_spent_until(one, finish) - _spent_until(one, begin)) / length, 0.0, 1.0) for one in other
    )
    overlap = np.minimum(computed + IDLE_INTENSITY * idled, 1.0)
    return rows.with_columns(seconds=pl.Series(length * NS), overlap=pl.Series(overlap))


def _spent_until(stretches: Floats, at: Floats) -> Floats:
    """Time in stretches before each moment (ns)."""
    if not len(stretches):
        return np.zeros_like(at)
    lengths = stretches[:, 1] - stretches[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    place = np.searchsorted(stretches[:, 0], at, side="right")
    last = np.maximum(place - 1, 0)
    return np.where(place > 0, before[last] + np.minimum(at - stretches[last, 0], lengths[last]), 0.0)

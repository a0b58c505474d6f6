"""A run's conversations: session -> turns, tasks and growth; and several runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ..breakdown import break_down
from ..compare.conditions import Difference, diff_conditions
from ..compare.estimate import Estimate, estimate_pairs
from ..errors import KvlensError
from ..run import Run
from ..source import Session
from .turns import Slope, fit_growth, grow, link_turns, sum_tasks

NS_PER_MS = 1e6
LEVEL = 0.95
SEED = 20261130


@dataclass(frozen=True)
class ConversationReport:
    """What is known of one run's conversations.

    turns: rows of link_turns. tasks: rows of sum_tasks. growth: rows of grow. slope: of the TTFT over the context.
    alone: requests that belong to no conversation.
    """

    run: Run
    turns: pl.DataFrame
    tasks: pl.DataFrame
    growth: pl.DataFrame
    slope: Slope | None
    alone: int

    @property
    def label(self) -> str:
        """What of the earlier turns was re-used, as the spans tell it."""
        later = self.turns.filter(pl.col("turn") > 0)
        words = ["readback"] if int(later["reused"].fill_null(0).sum()) else []
        words += ["prefix cache"] if int(later["cached"].fill_null(0).sum()) else []
        return " + ".join(words) or "no reuse"


def report_conversations(session: Session) -> ConversationReport:
    """Report a run's conversations. Raises KvlensError when no two requests belong together."""
    result = break_down(session)
    report = summarize_conversations(
        session.run, result.budgets, session.query("conversations"), session.query("decisions")
    )
    if report is None:
        raise KvlensError(
            f"no conversations in {session.run.name}: none of its {result.budgets.height} requests names one and no"
            " request was offered another one's blocks",
            "send X-Conversation-Id (or baggage gen_ai.conversation.id) through a router that records it, or record:"
            " kvlens lab run --mode bidirectional --turns 4 --out RUN",
        )
    return report


def summarize_conversations(
    run: Run, budgets: pl.DataFrame, routers: pl.DataFrame, decisions: pl.DataFrame
) -> ConversationReport | None:
    """Summarize conversations; None when no request belongs to one (arguments as in link_turns)."""
    turns = link_turns(budgets, routers, decisions)
    if turns.is_empty():
        return None
    return ConversationReport(
        run, turns, sum_tasks(turns), grow(turns), fit_growth(turns), budgets.height - turns.height
    )


@dataclass(frozen=True)
class Beside:
    """One run beside another: paired differences (this less base, ms), and what else differs.

    first: TTFT of first turns, which have nothing to re-use: a difference there is the machine's or chance. later: TTFT
    of the turns after them. tasks: completion less the gaps, whose lengths tools and people set.
    """

    base: str
    first: Estimate
    later: Estimate
    tasks: Estimate
    conditions: list[Difference]


def put_beside(base: ConversationReport, other: ConversationReport) -> Beside:
    """Compare the turns and tasks of two runs, paired by conversation and turn."""
    rng = np.random.default_rng(SEED)
    first, later = (
        _pair(
            *(one.turns.filter(which & (pl.col("link") == "given")) for one in (base, other)),
            on=["conversation", "turn"], value=pl.col("ttft"), rng=rng,
        )
        for which in (pl.col("turn") == 0, pl.col("turn") > 0)
    )  # fmt: skip
    busy = pl.col("completion_ns") - pl.col("gaps_ns")
    tasks = _pair(
        *(one.tasks.filter(pl.col("link") == "given") for one in (base, other)),
        on=["conversation"], value=busy, rng=rng,
    )  # fmt: skip
    conditions = diff_conditions(base.run.manifest, other.run.manifest)
    return Beside(base.run.name, first, later, tasks, conditions)


def _pair(a: pl.DataFrame, b: pl.DataFrame, *, on: list[str], value: pl.Expr, rng: np.random.Generator) -> Estimate:
    left, right = (
        frame.with_columns(value=value.cast(pl.Float64) / NS_PER_MS).select(*on, "value").unique(on, keep="last")
        for frame in (a, b)
    )
    pairs = left.join(right, on=on, suffix="_b").sort(on)
    return estimate_pairs(pairs["value"].to_numpy(), pairs["value_b"].to_numpy(), LEVEL, rng)


def choose_base(reports: list[ConversationReport]) -> int:
    """Choose what gains are measured against: the first run without any re-use, else the first."""
    return next((place for place, report in enumerate(reports) if report.label == "no reuse"), 0)


def describe_conditions(run: Run) -> dict[str, Any]:
    """Describe what of a run's conditions matters here; keys without a value are left out."""
    manifest = run.manifest
    extra: dict[str, Any] = {}
    for engine in manifest.get("engines") or ():
        config = (engine.get("connector") or {}).get("kv_connector_extra_config") if isinstance(engine, dict) else None
        extra |= config or {}
    cache, model, versions = (manifest.get(name) or {} for name in ("cache_policy", "model", "versions"))
    workload = manifest.get("workload") or {}
    found = {
        "mode": manifest.get("mode"),
        "prefix caching": {True: "on", False: "off"}.get(cache.get("prefix_caching")),  # type: ignore[arg-type]
        "bidirectional_kv_xfer": extra.get("bidirectional_kv_xfer"),
        "kv_recompute_threshold": extra.get("kv_recompute_threshold"),
        "decoder_kv_blocks_ttl s": extra.get("decoder_kv_blocks_ttl"),
        "block size": cache.get("block_size"),
        "conversations": workload.get("requests"),
        "turns": workload.get("turns"),
        "model": model.get("name"),
        "vLLM": versions.get("vllm"),
        "NIXL": versions.get("nixl"),
        "machine": (manifest.get("machine") or {}).get("cpu"),
        "created": str(manifest.get("created") or "")[:16],
    }
    return {name: value for name, value in found.items() if value not in (None, "")}

"""A run's lease report: session -> ledger, balance, comparison with vLLM's cache usage, retention curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ..errors import KvlensError
from ..run import Run
from ..source import Session
from .ledger import RUNNING, UNHEARD, add_unheard, balance, classify, mark_declined, sum_ledger
from .retention import Retention, draw_retention
from .usage import compare_usage, find_usage, read_usage


@dataclass(frozen=True)
class LeaseReport:
    """What is known of one run's held blocks.

    holdings: rows of ledger.classify. ledger: rows of sum_ledger. balance, usage: one entry per engine.
    bad_usage_lines: lines of cache_usage.jsonl that are damaged or of another schema. retention: None when nothing was
    kept for a next turn.
    """

    run: Run
    holdings: pl.DataFrame
    ledger: pl.DataFrame
    balance: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    bad_usage_lines: int
    retention: Retention | None


def report_leases(session: Session) -> LeaseReport:
    """Report a run's held blocks. Raises KvlensError when no engine told of any lease."""
    decisions = session.query("decisions")
    told = mark_declined(session.query("leases"), decisions)
    holdings = classify(add_unheard(told, session.query("engines")))
    if holdings.filter((pl.col("reason") != RUNNING) & (pl.col("outcome") != UNHEARD)).is_empty():
        raise KvlensError(
            f"no lease spans in {session.run.name}",
            "load the connector on the engine that keeps the blocks (prefill; in bidirectional also decode), and stop"
            " the engines cleanly, so that what is still held is told",
        )
    usage, bad = read_usage(find_usage(session.run))
    return LeaseReport(
        run=session.run,
        holdings=holdings,
        ledger=sum_ledger(holdings),
        balance=balance(holdings),
        usage=compare_usage(holdings, usage),
        bad_usage_lines=bad,
        retention=draw_retention(holdings, decisions),
    )

"""A run's lease report: session -> ledger, balance, comparison with vLLM's cache usage, retention curve."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import KvlensError
from ..run import Run
from ..source import Session
from .ledger import RUNNING, balance, classify, compare_usage, sum_ledger
from .retention import Retention, draw_retention

USAGE_FILE = "cache_usage.jsonl"
USAGE_SCHEMA = {"engine": pl.String, "unix_ns": pl.Int64, "blocks": pl.Int64}


@dataclass(frozen=True)
class LeaseReport:
    """What is known of one run's held blocks.

    holdings: rows of ledger.classify. ledger: rows of sum_ledger. balance, usage: one entry per engine. bad_samples:
    damaged lines of cache_usage.jsonl. retention: None when nothing was kept for a next turn.
    """

    run: Run
    holdings: pl.DataFrame
    ledger: pl.DataFrame
    balance: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    bad_samples: int
    retention: Retention | None


def report_leases(session: Session) -> LeaseReport:
    """Report a run's held blocks. Raises KvlensError when no engine told of any lease."""
    holdings = classify(session.query("leases"))
    if holdings.filter(pl.col("reason") != RUNNING).is_empty():
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
        bad_samples=bad,
        retention=draw_retention(holdings, session.query("decisions")),
    )


def find_usage(run: Run) -> Path | None:
    """Find the run directory's cache_usage.jsonl, beside its traces."""
    folders = {parent for path in run.files for parent in (path.parent, path.parent.parent)}
    return next((path for folder in sorted(folders) if (path := folder / USAGE_FILE).is_file()), None)


def read_usage(path: Path | None) -> tuple[pl.DataFrame, int]:
    """Read samples of cache usage: (engine, unix_ns, blocks), and how many lines were damaged."""
    rows: list[dict[str, Any]] = []
    bad = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path else ():
        try:
            record = json.loads(line)
            rows.append({name: record[name] for name in USAGE_SCHEMA})
        except (ValueError, KeyError, TypeError):
            bad += bool(line.strip())
    return pl.DataFrame(rows, schema=USAGE_SCHEMA, strict=False).drop_nulls(), bad

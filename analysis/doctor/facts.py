"""What the rules look at: a run's requests, its evidence spans and its conditions, as frames."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from exporters.efa.samples import Delta, deltas, parse_samples

from ..breakdown import Breakdown, break_down
from ..efa_streams import find_sample_files
from ..errors import KvlensError
from ..source import Session


@dataclass(frozen=True)
class Facts:
    """Everything that rules may know.

    budgets: requests with a first token, with seg_<segment> and ttft (ns). unfinished: requests that never ended.
    evidence, decisions, validations: rows of the SQL files of these names. manifest: the run's conditions, empty for a
    database. efa: counter movements of the run's EFA sample streams. engines: ids that any kvlens span came from.
    """

    budgets: pl.DataFrame
    unfinished: pl.DataFrame
    evidence: pl.DataFrame
    decisions: pl.DataFrame
    validations: pl.DataFrame
    manifest: dict[str, Any]
    health: dict[str, Any]
    engines: frozenset[str]
    efa: tuple[Delta, ...] = ()

    @cached_property
    def requests(self) -> pl.DataFrame:
        """All requests, finished or not, each once, with the columns that both have."""
        common = [name for name in self.unfinished.columns if name in self.budgets.columns]
        rest = self.unfinished.filter(~pl.col("request_id").is_in(self.budgets["request_id"].implode()))
        return pl.concat([self.budgets.select(common), rest.select(common)], how="vertical_relaxed")

    def spans(self, *names: str) -> pl.DataFrame:
        """Evidence spans of some names."""
        return self.evidence.filter(pl.col("name").is_in(names))

    def setting(self, name: str, default: float) -> float:
        """A connector setting (kv_connector_extra_config) of the run's engines, the default where none says."""
        for engine in self.manifest.get("engines", ()):
            for key in ("connector_extra", "extra_config", "kv_connector_extra_config"):
                extra = engine.get(key) if isinstance(engine, dict) else None
                if isinstance(extra, dict) and name in extra:
                    return float(extra[name])
        return default


def gather(session: Session) -> Facts:
    """Read the facts of an open run. Raises KvlensError when there is nothing to judge."""
    result: Breakdown = break_down(session)
    evidence = session.query("evidence")
    engines = set(evidence["engine"])
    for column in ("p_engine", "d_engine"):
        for frame in (result.budgets, result.unfinished):
            engines.update(frame[column].drop_nulls())
    return Facts(
        budgets=result.budgets,
        unfinished=result.unfinished,
        evidence=evidence,
        decisions=session.query("decisions"),
        validations=session.query("validations"),
        manifest=session.run.manifest,
        health=session.query("health").row(0, named=True),
        engines=frozenset(engines - {""}),
        efa=tuple(read_efa(find_sample_files(session.run.files))),
    )


def read_efa(paths: Iterable[Path]) -> list[Delta]:
    """Read counter movements. Raises KvlensError for a file that cannot be read."""
    moved: list[Delta] = []
    for path in paths:
        try:
            samples, _ = parse_samples(path.read_text(encoding="utf-8", errors="replace").splitlines())
        except (OSError, json.JSONDecodeError) as error:
            raise KvlensError(f"cannot read {path}: {error}", "repair the file, or move it away") from error
        moved += deltas(samples)
    return moved

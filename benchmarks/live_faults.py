"""Alerts and panels live: a real Prometheus scrapes real pairs while every alert's fault is injected in turn.

    python -m benchmarks.live_faults [--out DIR] [--only INCIDENT] [ACT...]    # acts: pull, push, bidirectional, tcp

Prints which alert fired in which incident, and every query of every panel with its rows. The Prometheus's data stay in
DIR/prometheus, the runs beside it, so that `kvlens dashboards check` and `preview` can be repeated without engines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from dashboards.build import build
from dashboards.check import DEFAULTS, EMPTY, FAILED, Finding, check_prometheus, check_run
from dashboards.prometheus import Prometheus, Span
from dashboards.targets import find_targets

from .live.matrix import ALERTS, Row, read_rows, render_rows
from .live.monitor import Monitor, open_store
from .live.profile import CONFIG, FACTOR, WINDOW
from .live.scenes import ACTS, keep, play

ALL = ("pull", "push", "bidirectional", "tcp")
# Twice the longest window of the rules, so that "then" has data of its own.
BASELINE = "60s"


def run(out: Path = Path("runs/live"), names: tuple[str, ...] = ALL, only: Sequence[str] = ()) -> list[Row]:
    """Play the acts (of each only the named incidents, if any are named), print matrix and queries."""
    if shutil.which("prometheus") is None:
        print("  skipped: prometheus is not installed")
        return []
    record(out, names, only)
    return judge(out)


def record(out: Path, names: tuple[str, ...], only: Sequence[str] = ()) -> None:
    """Play acts and keep their data in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    monitor = Monitor(out / "prometheus")
    monitor.start()
    try:
        for name in names:
            folder = choose_folder(out, name)
            act = ACTS[name]
            chosen = [incident for incident in act.incidents if not only or incident.name in only]
            for phase in play(
                replace(act, incidents=chosen), folder, monitor, lambda line: print(f"  {line}", flush=True)
            ):
                keep(phase, out / "phases.json")
    finally:
        monitor.stop()


def choose_folder(out: Path, name: str) -> Path:
    """Return a folder that no earlier pair of this act has used."""
    return next(folder for n in count(1) if not (folder := out / (name if n == 1 else f"{name}-{n}")).exists())


def judge(out: Path) -> list[Row]:
    """Print what the kept data say: matrix and panels."""
    phases = json.loads((out / "phases.json").read_text(encoding="utf-8"))["phases"]
    # Of incidents that were played again, the last time counts.
    latest = list({(phase["cluster"], phase["name"]): phase for phase in phases}.values())
    with open_store(out / "prometheus") as url:
        rows = read_rows(url, latest)
        findings = check_all(url, phases)
    runs = list(dict.fromkeys(str(phase["run"]) for phase in phases))
    sql = {run: list(check_run(CONFIG, find_targets(CONFIG, build(CONFIG)), Path(run), DEFAULTS)) for run in runs}
    print(render_rows(rows))
    never = set(ALERTS) - {alert for row in rows for alert in row.fired}
    missing, wrong = sum(len(row.missing) for row in rows), sum(len(row.wrong) for row in rows)
    print(f"{missing} missing, {wrong} wrong, never fired: {', '.join(sorted(never)) or 'none'}")
    for finding in findings:
        print(f"{finding.state:8}{finding.rows:5}  {finding.where} {finding.detail}")
    for run, answers in sql.items():
        print(f"SQL on {run}: " + ", ".join(f"{each.where.split(' / ')[1]} {each.rows} rows" for each in answers))
    bad = [finding for finding in findings if finding.state in {EMPTY, FAILED}]
    print(f"{len(findings)} queries over {_minutes(phases):.0f} min, {len(bad)} empty or failed")
    return rows


def check_all(url: str, phases: list[dict[str, Any]]) -> list[Finding]:
    """Return a finding for each PromQL query of panels and rules over the whole record."""
    span = Span(phases[0]["began"], phases[-1]["ended"])
    values = {**DEFAULTS, "__rate_interval": WINDOW, "baseline": BASELINE}
    targets = list(find_targets(CONFIG, build(CONFIG)))
    return list(check_prometheus(CONFIG, targets, Prometheus(url), values, span=span, factor=FACTOR))


def _minutes(phases: list[dict[str, Any]]) -> float:
    return float(phases[-1]["ended"] - phases[0]["began"]) / 60


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("acts", nargs="*", choices=[*ACTS, []], help="default: pull push bidirectional")
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    parser.add_argument("--only", action="append", default=[], metavar="INCIDENT", help="play these only")
    parser.add_argument("--judge", action="store_true", help="only print what the kept data say")
    options = parser.parse_args()
    began = time.monotonic()
    if options.judge:
        rows = judge(options.out)
    else:
        rows = run(options.out, tuple(options.acts) or ALL, options.only)
        print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(row.missing or row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

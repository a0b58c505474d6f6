"""`kvlens decisions`: fetch an earlier turn's KV or compute it again: why, at what cost, and the right threshold."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..render.decisions import render_checks, render_decisions, render_json
from ..reuse.check import Recorded, check_curve, load_recorded
from ..reuse.decisions import report_decisions
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option(
    "--check", "others", metavar="RUN", multiple=True, type=click.Path(path_type=Path),
    help="A run of the same workload with another threshold: the curve's prediction beside what it measured.",
)  # fmt: skip
def decisions(run: Path, as_json: bool, others: tuple[Path, ...]) -> None:
    """Show why the prefill engine fetched or computed again, what that cost, and which threshold would be right.

    RUN is a bidirectional run: a run directory, a folder of *.otlp.jsonl files, or a database (chdb:PATH).

    \b
    Examples:
      kvlens decisions runs/turns
      kvlens decisions runs/turns --check runs/threshold-512
      kvlens decisions runs/turns --json | jq '.reasons[] | {reason, requests}'
      kvlens decisions runs/turns --json | jq '.threshold.curve[] | {low, high, change_ms, fetched_share}'
    """
    with open_session([run]) as session:
        report = report_decisions(session)
        base = load_recorded(session) if others else None
    checks = [check_curve(base, _load(path)) for path in others] if base else []
    if as_json:
        click.echo(render_json(report, checks))
        return
    console = make_console()
    console.print(render_decisions(report))
    if checks:
        console.print(render_checks(checks))


def _load(path: Path) -> Recorded:
    with open_session([path]) as session:
        return load_recorded(session)

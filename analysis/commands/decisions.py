"""`kvlens decisions`: fetch an earlier turn's KV or compute it again: why, at what cost, and the right threshold."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..render.decisions import render_decisions, render_json
from ..reuse.decisions import report_decisions
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
def decisions(run: Path, as_json: bool) -> None:
    """Show why the prefill engine fetched or computed again, what that cost, and which threshold would be right.

    RUN is a bidirectional run: a run directory, a folder of *.otlp.jsonl files, or a database (chdb:PATH).

    \b
    Examples:
      kvlens decisions runs/turns
      kvlens decisions runs/turns --json | jq '.reasons[] | {reason, requests}'
      kvlens decisions runs/turns --json | jq '.threshold.curve[] | {low, high, change_ms, fetched_share}'
    """
    with open_session([run]) as session:
        report = report_decisions(session)
    if as_json:
        click.echo(render_json(report))
    else:
        make_console().print(render_decisions(report))

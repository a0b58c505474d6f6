"""`kvlens leases`: which blocks were held for whom, for how long, and for nothing."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..render.leases import render_json, render_leases
from ..reuse.leases import report_leases
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
def leases(run: Path, as_json: bool) -> None:
    """Show which blocks were held, why, for how long, and what another retention would have cost and lost.

    RUN is a run directory (with cache_usage.jsonl the ledger is compared with vLLM's own figure), a folder of
    *.otlp.jsonl files, or a database (chdb:PATH).

    \b
    Examples:
      kvlens leases runs/turns
      kvlens leases runs/turns --json | jq '.balance[] | {engine, taken, released, balanced}'
      kvlens leases runs/turns --json | jq '.retention.curve[] | {retention_s, block_s, lost}'
    """
    with open_session([run]) as session:
        report = report_leases(session)
    if as_json:
        click.echo(render_json(report))
    else:
        make_console().print(render_leases(report))

"""`kvlens tpot`: where every token's time went, and which transfer slowed which request."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..render.tpot import render_tpot
from ..render.tpot_json import render_json
from ..source import open_session
from ..tpot_report import report_tpot
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option("--top", metavar="N", default=5, show_default=True, type=click.IntRange(min=0), help="Culprits to list.")
@click.option(
    "--bound-ms", metavar="MS", type=click.FloatRange(min=0, min_open=True),
    help="Inter-token gaps above this are long (default: twice the median).",
)  # fmt: skip
def tpot(run: Path, as_json: bool, top: int, bound_ms: float | None) -> None:
    """Show where the time per output token went, and which transfer slowed which request.

    RUN is a run directory (manifest.json, traces/, client.jsonl) or a folder of *.otlp.jsonl files.

    \b
    Examples:
      kvlens tpot runs/pull
      kvlens tpot runs/pull --bound-ms 50 --top 20
      kvlens tpot runs/pull --json | jq '.culprits[0]'
    """
    with open_session([run]) as session:
        report = report_tpot(session, bound_ms)
    if as_json:
        click.echo(render_json(report))
    else:
        make_console().print(render_tpot(report, top))

"""`kvlens efa`: what the EFA devices counted while each transfer was in flight."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..efa_report import report_efa
from ..render.efa import render_efa, render_json
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option(
    "--top", metavar="N", default=20, show_default=True, type=click.IntRange(min=0), help="Flagged ones shown."
)
def efa(run: Path, as_json: bool, top: int) -> None:
    """Join every transfer with what its host's EFA devices counted meanwhile, and flag slow ones amid network trouble.

    RUN is a run directory with traces/ and efa/HOST.jsonl (kvlens lab run --efa, or kvlens efa-exporter --samples).

    \b
    Examples:
      kvlens efa runs/push
      kvlens efa runs/push --top 5
      kvlens efa runs/push --json | jq '.transfers[] | select(.flagged)'
    """
    with open_session([run]) as session:
        report = report_efa(session)
    if as_json:
        click.echo(render_json(report))
    else:
        make_console().print(render_efa(report, top))

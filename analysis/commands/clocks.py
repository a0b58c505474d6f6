"""`kvlens clocks`: how the clocks of a run's hosts stand to each other, and how well that is known."""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from ..clocks.align import align_clocks
from ..clocks.describe import describe_clocks, list_pairs
from ..clocks.render import render_clocks
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of the table.")
@click.option(
    "--top", metavar="N", default=30, show_default=True, type=click.IntRange(min=0),
    help="Pairs to list: unrelated ones first, then the widest.",
)  # fmt: skip
def clocks(run: Path, as_json: bool, top: int) -> None:
    """Show how the clocks of the run's hosts stand to each other, from the messages between them.

    RUN is a run directory (manifest.json, traces/) or a folder of *.otlp.jsonl files. Processes of one boot share a
    clock. For every pair of boots: the offset with its interval, drift, messages used, orders that no clock explains,
    jumps, and the hosts that the tightest bound goes through.

    \b
    Examples:
      kvlens clocks runs/pull
      kvlens clocks runs/pull --json | jq '.pairs[] | select(.width_ms > 5)'
    """
    with open_session([run]) as session:
        aligned = align_clocks(session)
    summary, pairs = describe_clocks(aligned), list_pairs(aligned)
    if as_json:
        click.echo(json.dumps({"schema": 1, "run": run.name, "clocks": summary, "pairs": pairs}, allow_nan=False))
    else:
        make_console().print(render_clocks(run.name, summary, pairs, top))

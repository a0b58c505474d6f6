"""`kvlens critical-path`: what the first token waited for, and what makes slow requests slow."""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from ..breakdown import break_down
from ..critical.render import render_paths, render_request
from ..critical.summary import SCHEMA, describe_request, load_paths, summarize_paths
from ..errors import KvlensError
from ..source import open_session
from .breakdown import find_request, make_console


@click.command("critical-path")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option("--request", "request_id", metavar="ID", help="Show one request's path (request, engine or trace id).")
def critical_path(run: Path, as_json: bool, request_id: str | None) -> None:
    """Show what first tokens waited for: drag and slack of every segment, and what makes slow requests slow.

    RUN is a run directory (manifest.json, traces/) or a folder of *.otlp.jsonl files. In push the prefill branch and
    the decode branch run side by side: only the later one delays the first token.

    \b
    Examples:
      kvlens critical-path runs/push
      kvlens critical-path runs/push --request req-7-00003
      kvlens critical-path runs/pull --json | jq '.modes.pull.differences[0]'
    """
    with open_session([run]) as session:
        breakdown = break_down(session)
        if request_id is not None:
            found = find_request(breakdown, request_id)
            if not found or found[0].budgets.is_empty():
                raise KvlensError(f"no request {request_id} with a first token", "kvlens breakdown RUN lists some")
            breakdown = found[0]
        paths = load_paths(session, breakdown)
    if request_id is not None:
        described = [describe_request(row) for row in paths.iter_rows(named=True)]
        if as_json:
            click.echo(
                json.dumps({"schema": SCHEMA, "run": breakdown.run.name, "requests": described}, allow_nan=False)
            )
            return
        for path in described:
            make_console().print(render_request(path))
        return
    modes = summarize_paths(paths)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "run": breakdown.run.name, "modes": modes}, allow_nan=False))
    else:
        make_console().print(render_paths(breakdown.run.name, modes))

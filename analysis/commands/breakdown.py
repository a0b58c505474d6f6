"""`kvlens breakdown`: where every request's time to first token went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import rich_click as click
from rich.console import Console

from ..breakdown import Breakdown, break_down
from ..errors import KvlensError
from ..progress import AFTER_FIRST_TOKEN
from ..render.interference import render_interference
from ..render.json import render_json
from ..render.sidebyside import render_side_by_side
from ..render.table import render_table
from ..render.waterfall import render_waterfall
from ..source import open_session

PIPE_WIDTH = 140
"""Columns when the output is no terminal: tables must not be folded to 80 in a log."""


@click.command()
@click.argument("runs", metavar="RUN [RUN2...]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option(
    "--request", "request_id", metavar="ID", help="Show one request as a waterfall (request, engine or trace id)."
)
@click.option(
    "--slowest",
    metavar="N",
    default=5,
    show_default=True,
    type=click.IntRange(min=0),
    help="Slowest requests to explain.",
)
def breakdown(runs: tuple[Path, ...], as_json: bool, request_id: str | None, slowest: int) -> None:
    """Show where every request's time to first token went.

    RUN is a run directory (manifest.json, traces/), a folder of *.otlp.jsonl files, or span files taken together.
    Several runs are printed side by side, next to what their clients measured.

    \b
    Examples:
      kvlens breakdown runs/pull
      kvlens breakdown runs/pull runs/push
      kvlens breakdown runs/pull --request lens-17
      kvlens breakdown runs/pull --json | jq '.requests[] | select(.ttft_ms > 500)'
      kvlens breakdown ~/.local/state/kvlens/traces --slowest 20
    """
    results = [_break_down(paths) for paths in _group(runs)]
    if request_id is not None:
        found = [row for result in results for row in find_request(result, request_id)]
        _print_request(results, found, request_id, as_json=as_json)
    elif as_json:
        click.echo(render_json(results))
    else:
        console = make_console()
        console.print(render_table(results[0], slowest) if len(results) == 1 else render_side_by_side(results))
        for result in results:
            if result.summary["interference"]:
                console.print(render_interference(result.run.name, result.summary["interference"]))


def _group(runs: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """Files alone are one run; otherwise each argument is a run of its own."""
    return [runs] if all(path.is_file() for path in runs) else [(path,) for path in runs]


def _break_down(paths: tuple[Path, ...]) -> Breakdown:
    with open_session(paths) as session:
        return break_down(session)


def find_request(result: Breakdown, request_id: str) -> list[Breakdown]:
    """Find the attempts that go by an id: the result cut down to them, or nothing."""
    wanted = pl.any_horizontal(
        (pl.col(name) == request_id).fill_null(value=False)
        for name in ("request_id", "request_key", "trace_id", "p_id", "d_id")
    )
    budgets, unfinished = result.budgets.filter(wanted), result.unfinished.filter(wanted)
    if budgets.is_empty() and unfinished.is_empty():
        return []
    return [replace(result, budgets=budgets, unfinished=unfinished)]


def _print_request(results: list[Breakdown], found: list[Breakdown], request_id: str, *, as_json: bool) -> None:
    if not found:
        some = ", ".join(name for result in results for name in result.budgets["request_id"].head(3))
        raise KvlensError(
            f"no request {request_id}",
            f"one of {some} (all: kvlens breakdown RUN --json | jq -r '.requests[].request_id')",
        )
    if as_json:
        click.echo(render_json(found))
        return
    console = make_console()
    for result in found:
        for row in result.budgets.iter_rows(named=True):
            console.print(render_waterfall(row))
        for row in result.unfinished.iter_rows(named=True):
            what = "its remaining tokens" if row["waiting_for"] == AFTER_FIRST_TOKEN else row["waiting_for"]
            console.print(f"{row['request_id']} never finished: it waited for {what}")


def make_console() -> Console:
    """Make the console: as wide as the terminal, or PIPE_WIDTH in a pipe."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)

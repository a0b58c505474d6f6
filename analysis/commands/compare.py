"""`kvlens compare`: what a second run does better or worse, and whether that can be said at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rich_click as click

from ..breakdown import Breakdown, break_down
from ..compare.comparison import Comparison, compare_breakdowns
from ..compare.conditions import CONNECTOR, GROUPS
from ..compare.document import render_comparison as render_document
from ..compare.gate import EXIT_CODE, GATED, Gate, apply_gate
from ..compare.naming import name_apart
from ..compare.published import NO_CLAIM, put_beside
from ..compare.table import render_comparison, render_published
from ..compare.verdict import CORRECTIONS, HOLM
from ..compare.words import write_headline
from ..errors import KvlensError
from ..library.notes import append_note
from ..segments import SEGMENTS
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("runs", metavar="A [B]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option(
    "--vary",
    multiple=True,
    type=click.Choice([name for name in GROUPS if name != CONNECTOR]),
    help="What the comparison is about, besides the connector.",
)
@click.option("--force", is_flag=True, help="Compare although more changed; the output says so.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Chance of any false better or worse among all rows.",
)
@click.option("--correction", type=click.Choice(CORRECTIONS), default=HOLM, show_default=True, help="For many rows.")
@click.option("--gate", is_flag=True, help=f"Exit with {EXIT_CODE} on a significant regression of B.")
@click.option(
    "--gate-threshold",
    metavar="PERCENT",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Regressions below this pass.",
)
@click.option(
    "--gate-on",
    multiple=True,
    type=click.Choice([*GATED, *SEGMENTS]),
    metavar="NAME",
    help="Rows that the gate watches; ttft and tpot by default.",
)
@click.option("--save", is_flag=True, help="Keep the headline as a note in both runs (see kvlens runs).")
@click.option("--published", is_flag=True, help="Put published figures beside one run, with both conditions.")
def compare(
    *, runs: tuple[Path, ...], as_json: bool, vary: tuple[str, ...], force: bool, alpha: float, correction: str,
    gate: bool, gate_threshold: float, gate_on: tuple[str, ...], save: bool, published: bool,
) -> None:  # fmt: skip
    """Compare run B with run A: which segments got better or worse, with confidence intervals.

    Paired by request where both runs sent the same workload, else by stratum of prompt length and load. Refuses when
    more than the connector changed, as the difference would then have no one cause: declare what should differ with
    --vary, or override with --force.

    \b
    Examples:
      kvlens compare runs/pull runs/push
      kvlens compare runs/old runs/new --vary versions --gate --gate-threshold 3
      kvlens compare runs/pull runs/push --json | jq '.rows[] | {name, verdict, difference_ms}'
      kvlens compare runs/push --published
    """
    wanted = 1 if published else 2
    if len(runs) != wanted:
        raise click.UsageError(
            f"{len(runs)} runs given, {wanted} needed.\nTry: kvlens compare A B, or kvlens compare RUN --published"
        )
    if published:
        _print_published(_break_down(runs[0]), as_json=as_json)
        return
    a, b = name_apart([_break_down(path) for path in runs], runs)
    comparison = compare_breakdowns(a, b, alpha=alpha, correction=correction, vary=vary)
    if not force:
        check_conditions(comparison)
    outcome = apply_gate(comparison, gate_threshold / 100, gate_on or GATED) if gate else None
    _print(comparison, outcome, as_json=as_json)
    if save:
        for path, other in ((runs[0], b), (runs[1], a)):
            append_note(path, write_headline(comparison), kind="comparison", other=other.run.name)
    if outcome and not outcome.passed:
        sys.exit(EXIT_CODE)


def _break_down(path: Path) -> Breakdown:
    with open_session([path]) as session:
        return break_down(session)


def check_conditions(comparison: Comparison) -> None:
    """Refuse a comparison whose result would have no one cause. Raises KvlensError."""
    if comparison.unknown:
        raise KvlensError(
            f"the conditions of {' and '.join(comparison.unknown)} are unknown: no manifest.json",
            "record the runs with `kvlens lab run`, write a manifest.json, or --force to compare all the same",
        )
    if comparison.undeclared:
        listed = "\n".join(f"  {one.key}: {one.a} -> {one.b}" for one in comparison.undeclared)
        groups = sorted({one.group for one in comparison.undeclared})
        flags = " ".join(f"--vary {group}" for group in groups)
        raise KvlensError(
            f"more than the connector changed between {comparison.a} and {comparison.b}:\n{listed}",
            f"{flags} if the comparison is about that, or --force to see figures that have no one cause",
        )


def _print(comparison: Comparison, gate: Gate | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(render_document(comparison, gate), ensure_ascii=False, allow_nan=False))
        return
    console = make_console()
    console.print(render_comparison(comparison))
    if gate:
        console.print(f"\n{gate.describe()}", style="green" if gate.passed else "bold red")


def _print_published(breakdown: Breakdown, *, as_json: bool) -> None:
    sets = put_beside(breakdown)
    if as_json:
        document = {"schema": 1, "run": breakdown.run.name, "note": NO_CLAIM, "sets": [vars(one) for one in sets]}
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        make_console().print(render_published(breakdown.run.name, sets))

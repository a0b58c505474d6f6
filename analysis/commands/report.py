"""`kvlens report`: one run, or two, as a single HTML file."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..compare.words import list_conditions
from ..errors import KvlensError
from ..report.bundle import read_bundle
from ..report.making import build_sections, load_runs
from ..report.model import Report
from ..report.page import render_page
from ..report.sections.comparison import compare_report

DEFAULT_NAME = "report.html"


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("other", metavar="[RUN2]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; RUN/report.html by default."
)
@click.option(
    "--request", "requests", multiple=True, metavar="ID", help="Show this request as a waterfall (repeatable)."
)
def report(*, run: Path, other: Path | None, out: Path | None, requests: tuple[str, ...]) -> None:
    """Write one run, or a comparison of two, as one HTML file that needs no network.

    With two runs the page also compares RUN2 with RUN and says first whether they may be compared at all. The file
    holds request ids but no prompts, tokens or headers.

    \b
    Examples:
      kvlens report runs/pull
      kvlens report runs/pull runs/push --out push-against-pull.html
      kvlens report runs/pull --request req-1-00017
    """
    bundle = read_bundle()
    made = Report(tuple(load_runs([path for path in (run, other) if path is not None])), requests)
    check_requests(made)
    comparison = compare_report(made)
    warnings = list_conditions(comparison) if comparison else []
    path = out or (run if run.is_dir() else run.parent) / DEFAULT_NAME
    text = render_page(made, build_sections(made), warnings, bundle)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvlensError(
            f"cannot write {path}: {error}", "--out with a folder that exists and can be written"
        ) from error
    click.echo(f"{path} ({len(text.encode()) / 1e6:.1f} MB)")


def check_requests(made: Report) -> None:
    """Raise KvlensError for a request id that no run has."""
    known = [set(run.breakdown.budgets["request_id"]) for run in made.runs]
    for name in made.requests:
        if not any(name in ids for ids in known):
            some = ", ".join(sorted(known[0])[:3])
            raise KvlensError(
                f"no request {name} with a first token", f"one of {some} (all: kvlens breakdown RUN --json)"
            )

"""`kvlens doctor`: what is wrong with a run, what it costs, and the setting that changes it."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ..doctor import diagnose, gather
from ..doctor.finding import ERROR, SEVERITIES, WARNING
from ..doctor.render import render_findings, render_json
from ..errors import KvlensError
from ..source import open_session
from ..sources import open_source

EXIT_FINDINGS = 3


@click.command()
@click.pass_context
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--source", metavar="SOURCE", help="A database instead of a run: chdb:PATH or clickhouse://host/otel?since=..."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON (schema 1).")
@click.option(
    "--fail-on", type=click.Choice([ERROR, WARNING, "never"]), default=ERROR, show_default=True,
    help="Exit with 3 when a finding is at least that grave.",
)  # fmt: skip
def doctor(ctx: click.Context, run: Path | None, source: str | None, as_json: bool, fail_on: str) -> None:
    """Say what is wrong with a run, what it costs and what to set.

    A healthy run has no finding. Exit code: 0 without a finding of the chosen gravity, 3 with one, 1 when there is
    nothing to judge, 2 for wrong usage. Every rule and its threshold is explained in docs/doctor.md.

    \b
    Examples:
      kvlens doctor runs/push
      kvlens doctor runs/push --json | jq '.findings[].rule'
      kvlens doctor --source chdb:./spans.chdb --fail-on warning
    """
    if (run is None) == (source is None):
        raise KvlensError(
            "name one run or one source", "kvlens doctor RUN, or kvlens doctor --source chdb:PATH", exit_code=2
        )
    with open_source(source) if source is not None else open_session([run or Path()]) as session:
        name, facts = session.run.name, gather(session)
    findings = diagnose(facts)
    click.echo(render_json(name, facts, findings) if as_json else render_findings(name, facts, findings))
    grave = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on != "never" else ()
    if any(finding.severity in grave for finding in findings):
        ctx.exit(EXIT_FINDINGS)

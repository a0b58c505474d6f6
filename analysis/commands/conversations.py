"""`kvlens conversations`: what each turn re-used and waited for, and what a whole task took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import rich_click as click

from ..errors import KvlensError
from ..render.conversations import render_conversations
from ..render.conversations_json import render_json
from ..reuse.conversations import ConversationReport, report_conversations
from ..source import open_session
from .breakdown import make_console


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
@click.option(
    "--against", metavar="RUN", multiple=True, type=click.Path(path_type=Path),
    help="Another run beside it, with its conditions; repeat for more.",
)  # fmt: skip
@click.option("--conversation", metavar="ID", help="Show one conversation turn by turn.")
@click.option(
    "--show", metavar="N", default=2, show_default=True, type=click.IntRange(min=0),
    help="Conversations to list turn by turn.",
)  # fmt: skip
def conversations(run: Path, *, as_json: bool, against: tuple[Path, ...], conversation: str | None, show: int) -> None:
    """Show whole conversations: what each turn re-used, computed and waited for, and what the task took.

    RUN is a run directory, a folder of *.otlp.jsonl files, or a database (chdb:PATH). Turns belong together by the
    router's conversation id, else through the request whose blocks were read back.

    \b
    Examples:
      kvlens conversations runs/turns
      kvlens conversations runs/turns --conversation conv-7-00000
      kvlens conversations runs/turns --against runs/off --against runs/prefix-caching
      kvlens conversations runs/turns --json | jq '.growth[] | {turn, context_tokens, ttft_ms, readback_ms}'
    """
    reports = [_report(path) for path in (run, *against)]
    if len(reports) > 1:
        reports = _name_apart(reports, (run, *against))
    if conversation is not None:
        known = [name for report in reports for name in report.tasks["conversation"]]
        if conversation not in known:
            raise KvlensError(f"no conversation {conversation}", f"one of {', '.join(known[:3])}")
    if as_json:
        click.echo(render_json(reports))
    else:
        make_console().print(render_conversations(reports, show, conversation))


def _report(path: Path) -> ConversationReport:
    with open_session([path]) as session:
        return report_conversations(session)


def _name_apart(reports: list[ConversationReport], paths: tuple[Path, ...]) -> list[ConversationReport]:
    """Name runs of equal name by their paths."""
    names = [report.run.name for report in reports]
    if len(set(names)) == len(names):
        return reports
    return [
        replace(report, run=replace(report.run, name=str(path))) for report, path in zip(reports, paths, strict=True)
    ]

"""`kvlens dashboards preview`: draw the dashboards from live data, without a Grafana."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timezone
from html import escape
from pathlib import Path

import rich_click as click

from analysis.errors import KvlensError


@click.command()
@click.option("--prometheus", metavar="URL", required=True, help="A Prometheus that has the rules loaded.")
@click.option("--source", type=click.Path(path_type=Path), help="A run on which the panels of ClickHouse are drawn.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write into.")
@click.option("--board", "uids", multiple=True, metavar="UID", help="Only these boards.")
@click.option("--last", default="3h", show_default=True, metavar="DURATION", help="Time that the graphs show.")
@click.option("--at", type=float, metavar="UNIX", help="When that time ends, in Unix seconds. [default: now]")
@click.option("--window", default="5m", show_default=True, help="What $__rate_interval stands for.")
@click.option("--baseline", default="1h", show_default=True, help="What $baseline of the incident page stands for.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A variable, such as cluster=blue.")
@click.option("--trace", metavar="ID", help="The request to show. [default: the slowest]")
def preview(
    *,
    prometheus: str,
    source: Path | None,
    out: Path,
    uids: tuple[str, ...],
    last: str,
    at: float | None,
    window: str,
    baseline: str,
    settings: tuple[str, ...],
    trace: str | None,
) -> None:
    """Draw every panel's real query result in its place: one self-contained HTML file per dashboard.

    Not Grafana, but its grid, titles, units, legends and limits, to see what a dashboard shows before it is installed.

    \b
    Examples:
      kvlens dashboards preview --prometheus http://127.0.0.1:9090 --out preview
      kvlens dashboards preview --prometheus http://127.0.0.1:9090 --source runs/push --last 30m --out preview
      kvlens dashboards preview --prometheus http://127.0.0.1:9090 --board kvlens-overview --set cluster=a --out preview
    """
    from analysis.report.bundle import read_bundle
    from analysis.source import open_session

    from ..check import DEFAULTS, find_trace
    from ..command import build_files
    from ..config import Config
    from ..prometheus import Prometheus, Span, read_duration
    from .page import render_board
    from .read import Sources

    config, span = Config(), Span.until(at, read_duration(last))
    files = build_files(config)
    boards = [json.loads(text) for path, text in files.items() if path.endswith(".json")]
    unknown = set(uids) - {board["uid"] for board in boards}
    if unknown:
        names = ", ".join(board["uid"] for board in boards)
        raise KvlensError(f"no board {', '.join(sorted(unknown))}", f"one of: {names}", exit_code=2)
    values = {**DEFAULTS, "__rate_interval": window, "baseline": baseline, **_read_settings(settings)}
    values |= {"__fromTime": _write_time(span.start), "__toTime": _write_time(span.end)}
    server, bundle = Prometheus(prometheus), read_bundle()
    out.mkdir(parents=True, exist_ok=True)
    with open_session([source]) if source is not None else nullcontext() as session:
        if session is not None:
            values["trace_id"] = trace or find_trace(config, session, values)
        for board in boards:
            if not uids or board["uid"] in uids:
                page = render_board(board, Sources(server, session, span, values), bundle, _describe(span))
                (out / f"{board['uid']}.html").write_text(page, encoding="utf-8")
                click.echo(out / f"{board['uid']}.html")
    (out / "index.html").write_text(_render_index(boards, out), encoding="utf-8")


def _write_time(at: float) -> str:
    return f"fromUnixTimestamp64Milli({at * 1000:.0f}, 'UTC')"


def _read_settings(settings: tuple[str, ...]) -> dict[str, str]:
    wrong = [text for text in settings if "=" not in text]
    if wrong:
        raise KvlensError(f"{wrong[0]!r} sets nothing", "--set NAME=VALUE", exit_code=2)
    return dict(text.split("=", 1) for text in settings)


def _describe(span: object) -> str:
    start, end = (datetime.fromtimestamp(at, timezone.utc) for at in (span.start, span.end))  # type: ignore[attr-defined]
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC."


def _render_index(boards: list[dict[str, str]], out: Path) -> str:
    links = "".join(
        f'<li><a href="{escape(board["uid"])}.html">{escape(board["title"])}</a>: {escape(board["description"])}</li>'
        for board in boards
        if (out / f"{board['uid']}.html").exists()
    )
    return f'<!DOCTYPE html><meta charset="utf-8"><title>kvlens dashboards</title><ul>{links}</ul>\n'

"""`kvlens runs`: old runs found by what they were run under and what came out."""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from ..errors import KvlensError
from ..library.entries import Entry, find_entries
from ..library.notes import append_note
from ..library.render import render_document, render_entries
from ..library.where import Condition, check_keys, meets, needs_headline, parse_condition
from .breakdown import make_console


@click.command()
@click.argument("folder", metavar="[DIR]", default=Path("runs"), type=click.Path(path_type=Path))
@click.option("--where", "conditions", multiple=True, metavar="KEY=VALUE", help="Also != < <= > >= and ~ (contains).")
@click.option("--grep", metavar="TEXT", help="Search conditions, conclusions and notes, ignoring case.")
@click.option("--note", nargs=2, metavar="RUN TEXT", type=(click.Path(path_type=Path), str), help="Attach a note.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema 1) instead of a table.")
def runs(
    *, folder: Path, conditions: tuple[str, ...], grep: str | None, note: tuple[Path, str] | None, as_json: bool
) -> None:
    """List and search the run directories below DIR (default: runs).

    Conditions are the dotted keys of manifest.json (mode, versions.vllm, workload.rate; the last part is enough) and
    the headline figures (requests, unfinished, ttft_p50, tpot_p99 in ms, share.queue, share.wire). Figures are cached
    in the run as summary.json and made again when its spans changed. Notes go to notes.jsonl in the run.

    \b
    Examples:
      kvlens runs
      kvlens runs /data/runs --where mode=push --where 'ttft_p50>200'
      kvlens runs --where vllm=0.32.0 --grep "late registration"
      kvlens runs --note runs/push "fabric was degraded, see the switch log"
    """
    if note is not None:
        append_note(*note)
        click.echo(f"noted in {note[0]}")
        return
    if not folder.is_dir():
        raise KvlensError(
            f"no folder {folder}", "kvlens runs DIR, or kvlens lab run --out runs/NAME first", exit_code=2
        )
    wanted = [parse_condition(text) for text in conditions]
    found = search(find_entries(folder), wanted, grep)
    if as_json:
        click.echo(json.dumps(render_document(found), ensure_ascii=False))
    elif found:
        make_console().print(render_entries(found, folder))
    else:
        click.echo(f"no runs in {folder}" + (" meet these conditions" if wanted or grep else ""))


def search(entries: list[Entry], wanted: list[Condition], grep: str | None) -> list[Entry]:
    """Search the entries; figures are computed only for runs that meet what the manifests alone can decide."""
    cheap = {condition for condition in wanted if any(not needs_headline(condition, e.conditions) for e in entries)}
    left = [entry for entry in entries if all(meets(entry.values, condition) for condition in cheap)]
    for entry in left:
        entry.load_headline()
    check_keys([one for one in wanted if one not in cheap], [entry.values for entry in left])
    left = [entry for entry in left if all(meets(entry.values, condition) for condition in wanted)]
    return [entry for entry in left if grep is None or grep.lower() in entry.text.lower()]

"""`kvlens load`: store a run in ClickHouse, embedded or on a server, in the tables that the collector uses."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rich_click as click

from exporters.clickhouse.database import Address
from exporters.clickhouse.schema import DEFAULT_TTL_DAYS, Layout, render_statements

from ..errors import KvlensError
from ..load import Loaded, load_files
from ..run import Run, find_run
from ..sources import read_address


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--to", "target", metavar="TARGET", help="chdb:PATH, clickhouse://host:8123/otel or clickhouses://...")
@click.option(
    "--ttl-days", metavar="N", default=DEFAULT_TTL_DAYS, show_default=True, type=click.IntRange(min=1),
    help="Whole days that a server keeps spans, when its tables are made; chdb: keeps them.",
)  # fmt: skip
@click.option("--ddl", type=click.Choice(["single", "cluster"]), help="Only print the statements that make the tables.")
@click.option("--cluster", metavar="NAME", default="{cluster}", show_default=True, help="Cluster of --ddl cluster.")
@click.option("--database", metavar="NAME", default="otel", show_default=True, help="Database of --ddl.")
def load(  # noqa: PLR0917 (click passes them by name)
    runs: tuple[Path, ...], target: str | None, ttl_days: int, ddl: str | None, cluster: str, database: str
) -> None:
    """Store runs in ClickHouse, in the tables that the OpenTelemetry collector writes.

    Loading again changes nothing; a load that was stopped goes on where it was. The target is then a source of other
    commands. A password is better given in CLICKHOUSE_PASSWORD than in the target.

    \b
    Examples:
      kvlens load runs/push runs/pull --to chdb:./spans.chdb
      kvlens load runs/push --to clickhouse://default@127.0.0.1:8123/otel
      kvlens load --ddl cluster --cluster prod --ttl-days 30
    """
    if ddl is not None:
        click.echo(render_ddl(ddl, cluster, database, ttl_days))
        return
    if not runs or target is None:
        raise KvlensError("nothing to load", "kvlens load RUN --to chdb:PATH", exit_code=2)
    address = read_address(target)
    for path in runs:
        run = find_run([path])
        done = load_run(run, address, ttl_days)
        damaged = f", {done.bad_lines} of {done.lines} lines damaged" if done.bad_lines else ""
        click.echo(
            f"{run.name}: {done.new_spans} new of {done.spans} spans from {len(done.files)} files, "
            f"{done.skipped} pieces were there already{damaged}"
        )


def load_run(run: Run, address: Address, ttl_days: int) -> Loaded:
    """Load one run behind a progress bar, in bytes of its files (more than there are, where they are packed)."""
    begin = time.perf_counter()
    size = sum(path.stat().st_size for path in run.files)
    with click.progressbar(length=size, label=run.name, file=sys.stderr) as bar:
        seen = 0

        def show(so_far: Loaded) -> None:
            nonlocal seen
            bar.label = f"{run.name}: {so_far.new_spans:,} new spans"
            bar.update(so_far.bytes - seen)
            seen = so_far.bytes

        done = load_files(run.files, address, ttl_days, progress=show)
    took = time.perf_counter() - begin
    click.echo(f"{done.spans / max(took, 1e-9):,.0f} spans/s, {took:.1f} s", err=True)
    return done


def render_ddl(kind: str, cluster: str, database: str, ttl_days: int) -> str:
    """Return the statements of a layout. Raises KvlensError (usage) for a name that is none."""
    try:
        layout = Layout(database, ttl_days, cluster if kind == "cluster" else None)
    except ValueError as error:
        raise KvlensError(str(error), "a plain name, or a macro such as {cluster}", exit_code=2) from error
    return ";\n\n".join(render_statements(layout)) + ";"

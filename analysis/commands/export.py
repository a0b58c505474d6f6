"""`kvlens export`: a run in another tool's format."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import rich_click as click

from ..breakdown import Breakdown, break_down
from ..clocks.correct import correct_rows
from ..errors import KvlensError
from ..source import open_session
from ..timeline import build_timeline, encode_names
from .breakdown import find_request


@click.group()
def export() -> None:
    """Write a run in another tool's format.

    \b
    Examples:
      kvlens export perfetto runs/push
    """


@export.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--request", "request_id", metavar="ID", help="One request (request, engine or trace id).")
@click.option(
    "--slowest", metavar="N", default=20, show_default=True, type=click.IntRange(min=1), help="The N slowest requests."
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Default: RUN.perfetto-trace here."
)
def perfetto(run: Path, request_id: str | None, slowest: int, out: Path | None) -> None:
    """Write requests as a Perfetto trace: open it in Perfetto's UI or query it with the trace processor.

    Engines are processes, threads and request lanes are tracks; arrows lead from the registration through pairing, post
    and wire to the first step; counters show held blocks, queues and transfers in flight. Nothing leaves this machine:
    the file is only written.

    \b
    Examples:
      kvlens export perfetto runs/push --slowest 5
      kvlens export perfetto runs/push --request lens-17 --out lens-17.perfetto-trace
    """
    # Here, not above: the protobuf classes are an extra of their own.
    from exporters.perfetto.writer import write_trace

    with open_session([run]) as session:
        result = break_down(session)
        chosen = choose_requests(result, request_id, slowest)
        ids = encode_names([*chosen["p_id"], *chosen["d_id"]])
        spans = session.query("timeline", ids=ids, traces=encode_names(chosen["trace_id"]))
        # All on one clock, so that what came first is left of what followed.
        boots = spans.select("engine", "boot").unique("engine", keep="first", maintain_order=True)
        levels = correct_rows(session.query("load_levels"), boots, result.relation)
        timeline = build_timeline(correct_rows(spans, boots, result.relation), levels, chosen)
        name = session.run.name
    path = out or Path(f"{name.split('.', maxsplit=1)[0]}.perfetto-trace")
    try:
        with path.open("wb") as file:
            written = write_trace(timeline, file)
    except ImportError as error:
        path.unlink(missing_ok=True)
        raise KvlensError(
            f"Perfetto's protobuf classes are missing: {error}", "pip install 'kvlens[perfetto]'"
        ) from error
    except OSError as error:
        raise KvlensError(f"cannot write {path}: {error}", "another --out") from error
    left_out = f", {written.backward_flows} arrows left out (clocks disagree)" if written.backward_flows else ""
    click.echo(
        f"{path}: {chosen.height} requests, {written.slices} slices, {written.flows} arrows, "
        f"{written.counters} counters{left_out}"
    )


def choose_requests(result: Breakdown, request_id: str | None, slowest: int) -> pl.DataFrame:
    """Choose a request by any of its ids, else the slowest ones. Raises KvlensError when there is none."""
    columns = ["request_id", "trace_id", "p_id", "d_id"]
    if request_id is None:
        known = result.budgets.sort("ttft", descending=True).head(slowest).select(columns)
        return known if known.height else result.unfinished.head(slowest).select(columns)
    found = find_request(result, request_id)
    if not found:
        some = ", ".join(result.budgets["request_id"].head(3))
        raise KvlensError(f"no request {request_id}", f"one of {some} (all: kvlens breakdown RUN --json)")
    return pl.concat([part.select(columns) for one in found for part in (one.budgets, one.unfinished)])

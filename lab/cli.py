"""``kvlens lab``: run a workload on a real P/D pair, leave a pair running, switch faults."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .efa import sample_efa
from .errors import LabError
from .faults import SITES, Fault, write_faults
from .options import make_pair_settings, make_workload, pair_options, parse_faults, workload_options

# Progress goes to stderr, so that --json and figures can be piped; rich itself respects NO_COLOR.
_console = Console(stderr=True)


@click.group()
def lab() -> None:
    """Run a real two-engine vLLM P/D pair on CPU through NIXL.

    Everything is real (vLLM, NIXL, UCX over loopback, KV cache in float32); only the model is tiny.
    """


@lab.command()
@pair_options
@workload_options
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Warm-up requests per length.")
@click.option("--fault", "faults", multiple=True, metavar="SITE=MS[@ENGINE]", help="Delay a site; see `lab fault`.")
@click.option("--efa", is_flag=True, help="Sample the host's EFA counters into the run; see `kvlens efa`.")
@click.option(
    "--efa-root",
    default=Path("/sys"),
    show_default=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --efa: where sysfs is mounted.",
)
def run(*, warmup: int, faults: Sequence[str], efa: bool, efa_root: Path, **options: Any) -> None:
    """Start a pair, send a workload, stop the pair. Needs about half a minute to start.

    \b
    Examples:
      kvlens lab run --mode pull --requests 30 --rate 1 --out runs/pull
      kvlens lab run --mode push --requests 30 --rate 1 --out runs/push --input-lens 200,1000
      kvlens lab run --mode pull --stock d --requests 10
      kvlens lab run --mode push --clock D0=+300ms --clock P0=-120ms,40ppm
      kvlens lab run --mode bidirectional --requests 5 --turns 3
      kvlens lab run --mode bidirectional --turns 6 --retention 8 --history sound,sound,paused --threshold 128
      kvlens lab run --mode bidirectional --requests 4 --concurrency 4 --turns 5 --gap 2 --gaps exponential
    """
    workload, pair = make_workload(options)
    chosen = parse_faults(faults)
    with stop_on_signals(), progress_bar() as (say, bar), open_pair(pair, say) as running:
        if warmup:
            running.warm_up(workload.input_lens, warmup)
        if chosen:
            running.set_faults(chosen)
        total = workload.requests * workload.turns
        task = bar.add_task("requests", total=total)
        with sample_efa(running.out, efa_root, say) if efa else nullcontext():
            records = running.run_workload(workload, lambda _: bar.advance(task))
        dead = [engine.child.name for engine in running.engines if not engine.is_alive()]
    _print_summary(records, running.out, dead)


@lab.command()
@pair_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when the pair is ready.")
@click.option("--warmup", default="", metavar="N,N,...", help="Prompt lengths to warm up with before saying ready.")
def up(as_json: bool, warmup: str, **pair: Any) -> None:
    """Start a pair and leave it running until Ctrl-C or SIGTERM.

    \b
    Examples:
      kvlens lab up --mode push
      kvlens lab up --mode pull --stock p --json --out runs/mine
    """
    with stop_on_signals(), progress_bar() as (say, bar), open_pair(pair, say) as running:
        if warmup:
            running.warm_up([int(part) for part in warmup.split(",")])
        bar.stop()
        if as_json:
            click.echo(json.dumps(running.describe()))
        else:
            click.echo(f"ready: {running.router_url}/v1/completions (model {running.describe()['model']})")
            for engine in running.engines:
                click.echo(f"  {engine.role:8} {engine.id}  {engine.url}  {engine.log}")
            click.echo(f"  run directory {running.out}; Ctrl-C stops it")
        sys.stdout.flush()
        try:
            while True:
                time.sleep(0.5)
                running.check()
        except KeyboardInterrupt:
            say("stopping")


@lab.command()
@click.argument("run_directory", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="RUN")
@click.argument("faults", nargs=-1, metavar="[SITE=MS[@ENGINE]]...")
@click.option("--rank", type=click.IntRange(0), help="Only this tensor-parallel rank.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="Only each n-th occurrence.")
@click.option("--clear", is_flag=True, help="Switch all faults off.")
@click.option("--list", "list_sites", is_flag=True, help="List the sites.")
def fault(
    *, run_directory: Path, faults: Sequence[str], rank: int | None, every: int, clear: bool, list_sites: bool
) -> None:
    """Delay something on the running pair of RUN. Replaces the faults that were on.

    \b
    Examples:
      kvlens lab fault runs/mine wire=80
      kvlens lab fault runs/mine post=40@decode prefill_compute=100
      kvlens lab fault runs/mine --clear
      kvlens lab fault runs/mine --list
    """
    if list_sites:
        for site, meaning in SITES.items():
            click.echo(f"{site:18} {meaning}")
        return
    if bool(faults) == clear:
        raise LabError("say which faults to set, or --clear", "for instance: kvlens lab fault RUN wire=80", exit_code=2)
    path = run_directory / "faults.json"
    if not path.exists():
        raise LabError(f"{run_directory} is not the run directory of a pair with fault sites", "see `kvlens lab up`")
    write_faults(path, {site: Fault(one.ms, one.engine, rank, every) for site, one in parse_faults(faults).items()})


def open_pair(options: dict[str, Any], say: Callable[[str], None]) -> Any:
    """Return the pair of the command line's options."""
    try:
        from .run import Pair
    except ModuleNotFoundError as error:
        raise LabError(f"the lab needs {error.name}", "pip install --no-deps -r requirements/lab.lock") from error
    settings = make_pair_settings(options)
    return Pair(settings.pop("mode"), router_port=settings.pop("port"), progress=say, **settings)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that it stops the engines too.

    SIGINT is set as well: a shell starts background jobs with it ignored, and Python then leaves it so.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[str], None], Progress]]:
    """Yield a function that says what is going on, and the bar; plain lines where there is no terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_console, disable=not _console.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def say(what: str) -> None:
            bar.update(task, description=what)
            if not _console.is_terminal:
                _console.print(what)

        yield say, bar


def _print_summary(records: Sequence[dict[str, Any]], out: Path, dead: Sequence[str]) -> None:
    """Print what the client saw; a failed request makes the exit status 1."""
    served = [record for record in records if record["status"] == "ok"]
    click.echo(f"{len(served)} of {len(records)} requests served")
    if served:
        first = sorted(record["ttft_ms"] for record in served)
        click.echo(f"client TTFT p50 {statistics.median(first):.0f} ms, max {first[-1]:.0f} ms")
    click.echo(f"run directory {out}; next: kvlens breakdown {out}")
    failed = [record for record in records if record["status"] != "ok"]
    if failed or dead:
        died = f"; dead: {', '.join(dead)}" if dead else ""
        first_error = failed[0]["error"] if failed else "no failed request"
        raise LabError(f"{len(failed)} requests failed (first: {first_error}){died}", f"read {out / 'logs'}")

"""`kvlens synthetic`: make a span set with known truth, at the time scales of a P5en fleet."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import rich_click as click

from ..errors import KvlensError
from ..synthetic.parameters import FAULT_SITES, Fault, Parameters
from ..synthetic.write import NOTICE, write_run

_DEFAULTS = Parameters()
_FAULT = re.compile(r"(?P<site>\w+)=(?P<ms>[\d.]+)(?:ms)?@(?P<share>[\d.]+)(?P<percent>%?)")
_FIGURES: dict[str, tuple[str, str]] = {
    "seed": ("N", "Equal seeds and options give equal bytes."),
    "prefill_engines": ("N", "Prefill engines, one per host."),
    "decode_engines": ("N", "Decode engines, one per host."),
    "routers": ("N", "Routers, one per host."),
    "ranks": ("N", "Tensor-parallel ranks of every engine; each has spans of its own."),
    "rate": ("R", "Requests per second of the whole fleet; 0: what keeps prefill busy for --utilisation."),
    "utilisation": ("U", "Share of the time that the prefill engines compute."),
    "median_prompt_tokens": ("N", "Median of the log-normal prompt lengths (without --input-lens)."),
    "prefill_tokens_per_s": ("N", "Prompt tokens per second of one prefill engine."),
    "decode_step_ms": ("MS", "Length of a decode step."),
    "wire_gb_per_s_per_rank": ("GB/S", "What one rank moves per second."),
    "handshake_ms": ("MS", "Median first contact of two engines."),
    "clock_offset_ms": ("MS", "Wall clocks of hosts are off by up to this."),
    "clock_drift_ppm": ("PPM", "Monotonic clocks of hosts run off by up to this."),
    "drop": ("SHARE", "Share of spans that are lost."),
    "kills": ("N", "Engines that are killed and come back."),
}


def _add_figures(command: Any) -> Any:
    for name, (metavar, text) in reversed(_FIGURES.items()):
        default = getattr(_DEFAULTS, name)
        option = click.option(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            type=type(default),
            default=default,
            show_default=True,
            help=text,
        )
        command = option(command)
    return command


@click.command()
@click.option(
    "--requests", metavar="N", default=10_000, show_default=True, type=click.IntRange(min=1), help="Requests."
)
@click.option(
    "--out",
    required=True,
    metavar="RUN",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run directory to make.",
)
@click.option(
    "--mode", type=click.Choice(["push", "pull", "mixed"]), default="mixed", show_default=True,
    help="mixed: one half of the engines each.",
)  # fmt: skip
@click.option("--input-lens", metavar="N,N...", default="", help="Prompt lengths to draw from (tokens).")
@click.option("--fault", "faults", metavar="SITE=MS@SHARE", multiple=True, help=f"Delay at: {', '.join(FAULT_SITES)}.")
@_add_figures
def synthetic(requests: int, out: Path, mode: str, input_lens: str, faults: tuple[str, ...], **figures: Any) -> None:
    """Make a SYNTHETIC run: span files of a fleet at P5en time scales, with the truth beside them.

    Nothing in it was measured; the manifest holds every assumption. RUN gets truth.parquet (true segments and
    milestones of each request) and truth_clocks.parquet (true offset and drift of each process).

    \b
    Examples:
      kvlens synthetic --requests 20000 --out runs/synthetic
      kvlens synthetic --requests 500000 --out runs/large
      kvlens synthetic --mode push --fault wire=200@0.01 --fault post=80ms@2% --drop 0.01 --kills 1 --out runs/faulty
      kvlens synthetic --mode pull --prefill-engines 1 --decode-engines 1 --input-lens 16000 --rate 3 --out runs/long
      kvlens breakdown runs/synthetic
    """
    parameters = read_parameters(requests, mode, input_lens, faults, figures)
    if (out / "manifest.json").exists() and '"synthetic": true' not in (out / "manifest.json").read_text():
        raise KvlensError(f"{out} holds a run that is not synthetic", "another --out", exit_code=2)
    begin = time.perf_counter()
    with click.progressbar(length=requests, label="requests", show_pos=True) as bar:
        done = 0

        def show(count: int) -> None:
            nonlocal done
            bar.update(count - done)
            done = count

        written = write_run(parameters, out, show)
    took = time.perf_counter() - begin
    click.echo(
        f"{NOTICE}\n{out}: {requests:,} requests, {written.spans:,} spans, {written.bytes / 1e9:.2f} GB in {took:.0f} s"
    )


def read_parameters(
    requests: int, mode: str, input_lens: str, faults: tuple[str, ...], figures: dict[str, Any]
) -> Parameters:
    """Build parameters from the options. Raises KvlensError (usage) for what no run can be made of."""
    try:
        lens = tuple(int(text) for text in input_lens.split(",") if text)
        return Parameters(
            requests=requests, mode=mode, input_lens=lens, faults=tuple(_read_fault(text) for text in faults), **figures
        )
    except ValueError as error:
        raise KvlensError(str(error), "kvlens synthetic --help", exit_code=2) from error


def _read_fault(text: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no fault such as wire=200@0.01")
    return Fault(match["site"], float(match["ms"]), float(match["share"]) / (100 if match["percent"] else 1))

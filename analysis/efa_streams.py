"""Read a run's EFA sample streams (RUN/efa/HOST.jsonl) as the frames that analysis.efa joins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from exporters.efa.samples import RESET, Delta, Sample, load_samples, walk_deltas

from .efa import COUNTERS, accumulate
from .errors import KvlensError

# A reset's delta is the counter's whole value, which can be anything up to 64 bits: sums must still fit.
LARGEST = 2**61
TIMES = {"host": pl.String, "device": pl.String, "port": pl.String, "unix_ns": pl.Int64}
MOVES = {**TIMES, "counter": pl.String, "delta": pl.Int64, "reset": pl.Int64}


@dataclass(frozen=True)
class Streams:
    """totals: analysis.efa.accumulate. counted: counters that the devices have. skipped: lines that were unreadable.

    assumed: host names of streams whose name is no span's host, but which can only be that of the run's one host.
    """

    totals: pl.DataFrame
    counted: frozenset[str]
    skipped: int
    assumed: tuple[str, ...] = ()


def find_sample_files(files: Iterable[Path]) -> list[Path]:
    """The EFA sample streams beside a run's traces: RUN/efa/*.jsonl."""
    roots = {path.parent.parent for path in files if path.parent.name == "traces"}
    return sorted(path for root in roots for path in (root / "efa").glob("*.jsonl"))


def load_streams(paths: Sequence[Path], hosts: Sequence[str]) -> Streams:
    """Read the streams of the hosts that posted transfers.

    paths: one file per host, named after it. hosts: host.name of the spans.

    Raises:
        KvlensError: there is no stream, none belongs to these hosts, or none has a sample.
    """
    if not paths:
        raise KvlensError(
            "the run has no EFA samples (no RUN/efa/*.jsonl)",
            "record with kvlens lab run --efa, or on every host of a run: "
            "kvlens efa-exporter --samples RUN/efa/$(hostname).jsonl --interval 0.1",
        )
    owners = match_hosts([path.stem for path in paths], hosts)
    if not owners:
        raise KvlensError(
            f"no sample stream is named after a host that posted transfers ({', '.join(map(repr, hosts))})",
            f"rename RUN/efa/{paths[0].name} to RUN/efa/HOST.jsonl, HOST being host.name of the spans",
        )
    times: list[tuple[Any, ...]] = []
    moves: list[tuple[Any, ...]] = []
    counted: set[str] = set()
    skipped = 0
    for path in paths:
        if path.stem not in owners:
            continue
        host, (samples, bad) = owners[path.stem], read_stream(path)
        skipped += bad
        traffic = [sample for sample in samples if not sample.counters.keys().isdisjoint(COUNTERS)]
        counted.update(name for sample in traffic for name in sample.counters)
        times += ((host, sample.device, sample.port, sample.unix_ns) for sample in traffic)
        moves += (make_move(host, one) for one in walk_deltas(traffic) if one.counter in COUNTERS)
    if not times:
        raise KvlensError(
            "the EFA sample streams hold no traffic counters",
            "check what the host has: kvlens efa-exporter --json (in a container: --root /host/sys)",
        )
    totals = accumulate(pl.DataFrame(times, TIMES, orient="row"), pl.DataFrame(moves, MOVES, orient="row"))
    assumed = tuple(sorted(stem for stem, host in owners.items() if stem != host))
    return Streams(totals, frozenset(counted), skipped, assumed)


def match_hosts(stems: Sequence[str], hosts: Sequence[str]) -> Mapping[str, str]:
    """Return the host of each stream that has one: its own name, or the only host there is to one only stream."""
    if len(stems) == len(hosts) == 1:
        return {stems[0]: hosts[0]}
    return {stem: stem for stem in stems if stem in hosts}


def read_stream(path: Path) -> tuple[list[Sample], int]:
    """Return the samples of a file and how many lines were skipped. Raises KvlensError when it cannot be read."""
    try:
        return load_samples(path)
    except OSError as error:
        raise KvlensError(f"cannot read {path}: {error.strerror}", "repair the file, or move it away") from error


def make_move(host: str, one: Delta) -> tuple[Any, ...]:
    """Return a delta as a row of MOVES."""
    delta = min(one.delta, LARGEST)
    return (host, one.device, one.port, one.end_unix_ns, one.counter, delta, int(one.kind == RESET))

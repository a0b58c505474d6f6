"""Where things go: the run directory, each engine's id, ports, cores and log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .engine import EngineSpec, assign_cores
from .errors import LabError
from .host_clock import HostClock, place_engines
from .manifest import available_cores
from .ports import pick_free


def choose_run_directory(mode: str, out: Path | str | None) -> Path:
    """Return the run directory, absolute; refuses one that holds a run already."""
    path = Path(out or f"runs/{mode}-{datetime.now():%Y%m%d-%H%M%S}").resolve()
    if (path / "manifest.json").exists():
        raise LabError(f"{path} already holds a run", "choose another --out, or remove that folder")
    return path


def make_specs(
    shared: Mapping[str, Any],
    stock: str | None,
    decoders: int,
    taken: set[int],
    out: Path,
    *,
    clocks: Mapping[str, HostClock | str] = {},
) -> list[EngineSpec]:
    """Return the specs of P and of every decoder, each with free ports, its cores and its clock."""
    names = [("prefill", "P0"), *(("decode", f"D{index}") for index in range(decoders))]
    ports = pick_free(2 * len(names), taken)
    cores = available_cores()
    hosts = place_engines(clocks, [name for _, name in names])
    specs = []
    for number, (role, name) in enumerate(names):
        specs.append(
            EngineSpec(
                role=role,
                id=name,
                port=ports[2 * number],
                side_channel_port=ports[2 * number + 1],
                log=out / "logs" / f"{role}-{name}.log",
                instrumented=stock not in ("both", role[0]),
                cores=assign_cores(role, max(0, number - 1), shared["tensor_parallel"], cores),
                host=hosts.get(name),
                **shared,
            )
        )
    return specs

"""The processes of a synthetic fleet and their clocks.

Every host has one boot with one monotonic clock, which runs off by a constant drift, and a wall clock with a constant
offset. A process anchors its monotonic clock to the wall clock when it starts and stamps from there, as real ones do.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
import polars as pl

from .parameters import MS, SECOND, Parameters

Times = npt.NDArray[np.int64]

EPOCH = 1_790_000_000 * SECOND
"""Unix ns at true time 0 of every synthetic run."""
EARLIEST_START = -600 * SECOND
ANCHOR_NOISE_NS = 20_000
"""A process anchors two clocks one after the other; this is how far (ns) that can be off."""


@dataclass(frozen=True)
class Engine:
    """One engine (or router): its group's mode, its host and when it was killed (true ns, None: never)."""

    name: str
    role: str
    mode: str
    host: int
    killed: int | None = None
    restarted: int = 0

    @property
    def service(self) -> str:
        """service.name of its spans."""
        return "kvlens-router" if self.role == "router" else f"vllm-{self.role}"


@dataclass(frozen=True)
class Fleet:
    """Engines by role, and the processes as columns.

    processes: one row per process: process, engine, role, mode, host, boot_id, rank (-1: scheduler or router),
    generation, pid, service, anchor_true_ns, anchor_unix_ns, anchor_perf_ns, offset_ns (own stamps less true time, at
    the anchor), drift_ppm, rebased_offset_ns (the same at true time 0, with its boot on its earliest anchor).
    first: process number of an (engine name, rank) in its first life; the second life is the number after.
    """

    prefill: tuple[Engine, ...]
    decode: tuple[Engine, ...]
    routers: tuple[Engine, ...]
    processes: pl.DataFrame
    first: dict[tuple[str, int], int]

    def stamp(self, process: Times, true: Times) -> Times:
        """Turn true times (ns) into what the processes stamp (Unix ns)."""
        columns = self.processes
        anchor = columns["anchor_true_ns"].to_numpy()[process]
        drift = columns["drift_ppm"].to_numpy()[process] * 1e-6
        since = true - anchor
        stamped: Times = columns["anchor_unix_ns"].to_numpy()[process] + since + np.rint(since * drift).astype(np.int64)
        return stamped

    def locate(self, engines: tuple[Engine, ...], choice: Times, at: Times, rank: int) -> Times:
        """Return the process that runs `rank` (-1: the scheduler) of the chosen engines at a true time."""
        first = np.array([self.first[engine.name, rank] for engine in engines])
        killed = np.array([_or_never(engine.killed) for engine in engines])
        found: Times = first[choice] + (at > killed[choice])
        return found


def build_fleet(p: Parameters, rng: np.random.Generator, horizon: int) -> Fleet:
    """Build engines, hosts and processes; horizon: true ns of the last arrival, within which engines are killed."""
    modes = p.modes
    groups = {"prefill": p.prefill_engines, "decode": p.decode_engines, "router": p.routers}
    hosts = sum(groups.values())
    doomed = set(
        rng.choice(p.prefill_engines + p.decode_engines, min(p.kills, p.prefill_engines), replace=False).tolist()
    )
    engines: dict[str, list[Engine]] = {role: [] for role in groups}
    host = 0
    for role, count in groups.items():
        for number in range(count):
            mode = p.mode if role == "router" else modes[number * len(modes) // count]
            name = {"prefill": "P", "decode": "D", "router": "R"}[role] + str(number)
            killed = int(rng.uniform(0.2, 0.8) * horizon) if role != "router" and host in doomed else None
            back = 0 if killed is None else killed + int(p.restart_s * SECOND)
            engines[role].append(Engine(name, role, mode, host, killed, back))
            host += 1
    every = [engine for role in groups for engine in engines[role]]
    processes, first = _start_processes(every, p, rng, hosts)
    return Fleet(
        tuple(engines["prefill"]), tuple(engines["decode"]), tuple(engines["router"]), processes, first
    )  # fmt: skip


def _start_processes(
    engines: list[Engine], p: Parameters, rng: np.random.Generator, hosts: int
) -> tuple[pl.DataFrame, dict[tuple[str, int], int]]:
    offsets = np.rint(rng.uniform(-p.clock_offset_ms, p.clock_offset_ms, hosts) * MS).astype(np.int64)
    drifts = rng.uniform(-p.clock_drift_ppm, p.clock_drift_ppm, hosts)
    uptimes = rng.integers(3600 * SECOND, 40 * 86_400 * SECOND, hosts)
    boots = [str(UUID(bytes=rng.bytes(16), version=4)) for _ in range(hosts)]
    rows: list[dict[str, object]] = []
    first: dict[tuple[str, int], int] = {}
    for engine in engines:
        # With one rank vLLM's scheduler and worker share a process.
        ranks = [-1] if engine.role == "router" or p.ranks == 1 else [-1, *range(p.ranks)]
        for rank in ranks:
            first[engine.name, rank] = len(rows)
            for life, begun in enumerate((EARLIEST_START, engine.restarted)[: 1 + (engine.killed is not None)]):
                anchored = int(begun + rng.integers(0, 30 * SECOND))
                host, noise = engine.host, int(rng.integers(-ANCHOR_NOISE_NS, ANCHOR_NOISE_NS))
                offset = int(offsets[host]) + noise
                rows.append({
                    "process": len(rows), "engine": engine.name, "role": engine.role, "mode": engine.mode,
                    "host": f"host-{engine.host}", "boot_id": boots[host], "rank": rank, "generation": life,
                    "pid": 1000 + 7 * len(rows), "service": engine.service, "anchor_true_ns": anchored,
                    "anchor_unix_ns": EPOCH + anchored + offset,
                    "anchor_perf_ns": int(uptimes[host]) + anchored + round(anchored * float(drifts[host]) * 1e-6),
                    "offset_ns": offset, "drift_ppm": float(drifts[host]),
                })  # fmt: skip
        if p.ranks == 1 and engine.role != "router":
            first[engine.name, 0] = first[engine.name, -1]
    frame = pl.DataFrame(rows)
    earliest = frame.sort("anchor_perf_ns").group_by("boot_id", maintain_order=True).first()
    base = earliest.select("boot_id", base_ns="offset_ns", base_at="anchor_true_ns")
    rebased = pl.col("base_ns") - (pl.col("base_at") * pl.col("drift_ppm") * 1e-6).round().cast(pl.Int64)
    frame = frame.join(base, on="boot_id", maintain_order="left").with_columns(rebased_offset_ns=rebased)
    return frame.drop("base_ns", "base_at"), first


def _or_never(when: int | None) -> int:
    return np.iinfo(np.int64).max if when is None else when

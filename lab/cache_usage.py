"""Sample what vLLM itself says of its KV cache during a run: `cache_usage.jsonl`, one line per engine and sample.

vLLM sets its gauge at the end of an engine step, so between steps it says what the last one left.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from instrumented_connectors.clock import Clock

SCHEMA = 1
"""Version of a record. 1: {schema, engine, unix_ns, usage (0..1), blocks (used), total_blocks}."""

FILE = "cache_usage.jsonl"
RATE_HZ = 5.0
_TIMEOUT_S = 2.0
_USAGE = "vllm:kv_cache_usage_perc"
_INFO = "vllm:cache_config_info"
_VALUE = re.compile(rf"^{_USAGE}(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)
_BLOCKS = re.compile(rf'^{_INFO}{{[^}}]*num_gpu_blocks="(\d+)"', re.MULTILINE)


class CacheSampler:
    """A thread that asks every engine for its cache usage until it is stopped.

    Args:
        engines: HTTP address by engine id.
        out: run directory.
        rate_hz: samples per second and engine.
        clock: the process's anchored clock.
    """

    def __init__(
        self, engines: Mapping[str, str], out: Path, rate_hz: float = RATE_HZ, clock: Clock | None = None
    ) -> None:
        self._engines, self._path, self._interval_s = dict(engines), out / FILE, 1.0 / rate_hz
        self._clock = clock or Clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-usage", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling, with one last sample, and wait for the file to be complete."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        probes = {engine: _Probe(url) for engine, url in self._engines.items()}
        with self._path.open("a", encoding="utf-8") as file:
            due = time.perf_counter()
            while True:
                is_last = self._stop.is_set()
                for engine, probe in probes.items():
                    if record := self._sample(engine, probe):
                        file.write(json.dumps(record, separators=(",", ":")) + "\n")
                file.flush()
                if is_last:
                    return
                # A late sample is no reason for two in a row.
                due = max(due + self._interval_s, time.perf_counter())
                self._stop.wait(due - time.perf_counter())

    def _sample(self, engine: str, probe: _Probe) -> dict[str, Any] | None:
        before_ns = self._clock.wall_ns()
        usage = probe.read()
        if usage is None:
            return None
        return {
            "schema": SCHEMA, "engine": engine, "unix_ns": (before_ns + self._clock.wall_ns()) // 2, "usage": usage,
            "blocks": round(usage * (probe.total_blocks - 1)), "total_blocks": probe.total_blocks,
        }  # fmt: skip


class _Probe:
    """One engine's metrics, of which only the gauge is asked for: the whole page would cost the engine milliseconds."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None
        self.total_blocks = 0

    def read(self) -> float | None:
        """Return the usage (0..1), None if the engine does not answer."""
        try:
            if not self.total_blocks:
                found = _BLOCKS.search(self._get(_INFO))
                self.total_blocks = int(found[1]) if found else 0
            values = _VALUE.findall(self._get(_USAGE))
            return sum(map(float, values)) / len(values) if values and self.total_blocks else None
        except (OSError, http.client.HTTPException, ValueError):
            # The next sample opens a new connection; an engine that is starting or ending has none.
            if self._connection:
                with suppress(OSError):
                    self._connection.close()
            self._connection = None
            return None

    def _get(self, name: str) -> str:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        self._connection.request("GET", f"/metrics?name[]={name}")
        answer = self._connection.getresponse()
        return answer.read().decode("utf-8", "replace")


def read_samples(run: Path) -> list[dict[str, Any]]:
    """Return a run's samples; a half-written last line is left out."""
    samples = []
    for line in (run / FILE).read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            samples.append(json.loads(line))
    return samples


def integrate_blocks(
    samples: Iterable[Mapping[str, Any]], engine: str, begin_ns: int | None = None, end_ns: int | None = None
) -> float:
    """Return the block-seconds that an engine's cache held: each sample counts until the next one.

    Args:
        samples: of a run, in the order of time.
        engine: engine id.
        begin_ns, end_ns: Unix ns between which to integrate; the first and last sample when None.
    """
    mine = [(sample["unix_ns"], sample["blocks"]) for sample in samples if sample["engine"] == engine]
    if not mine:
        return 0.0
    clip = _clipper(mine[0][0] if begin_ns is None else begin_ns, mine[-1][0] if end_ns is None else end_ns)
    ends = [at for at, _ in mine[1:]] + [mine[-1][0] if end_ns is None else max(end_ns, mine[-1][0])]
    return sum(blocks * (clip(end) - clip(at)) for (at, blocks), end in zip(mine, ends, strict=True)) / 1e9


def _clipper(begin_ns: int, end_ns: int) -> Callable[[int], int]:
    return lambda at: min(max(at, begin_ns), end_ns)

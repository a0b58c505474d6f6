"""Write a synthetic run: span files, manifest and the truth beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from .encode import cut_lines, encode_kind, encode_resource
from .fleet import EPOCH, Fleet, build_fleet
from .identity import Identities
from .parameters import MS, Parameters
from .spans import NEVER, Emitter, find_broken
from .timeline import Truth, Workload, choose_engines, draw_workload, simulate

BLOCK_REQUESTS = 16_000
"""Requests whose spans are made at once: about 400,000 spans, 400 MB of text."""
FILE_BYTES = 64 * 1024 * 1024
"""A span file is full at this size, as the file exporter's are."""
NOTICE = "SYNTHETIC: made by `kvlens synthetic` from stated parameters; nothing here was measured."


@dataclass
class Written:
    """What was written."""

    spans: int = 0
    bytes: int = 0
    files: int = 0


def write_run(p: Parameters, out: Path, progress: Callable[[int], None] = lambda _: None) -> Written:
    """Make a run of these parameters under `out`; progress is told the requests done so far.

    Writes manifest.json, traces/*.otlp.jsonl, truth.parquet (one row per request) and truth_clocks.parquet (one row per
    process). Equal parameters give equal bytes.
    """
    rng = np.random.default_rng(p.seed)
    sent, prompt, output, fault = draw_workload(p, rng)
    fleet = build_fleet(p, rng, int(sent[-1]))
    chosen = choose_engines(p, fleet, rng, sent)
    workload = Workload(sent=sent, prompt=prompt, output=output, fault=fault, **chosen)
    ids = Identities(p.requests, p.seed, rng)
    truth = simulate(p, workload, rng)
    (out / "traces").mkdir(parents=True, exist_ok=True)
    build_truth(p, fleet, workload, truth, ids).write_parquet(out / "truth.parquet")
    fleet.processes.write_parquet(out / "truth_clocks.parquet")
    files = _Files(out / "traces", fleet)
    for start in range(0, p.requests, BLOCK_REQUESTS):
        rows = slice(start, min(start + BLOCK_REQUESTS, p.requests))
        emitter = Emitter(p, fleet, workload, truth, ids, rows, p.seed)
        texts = pl.concat([encode_kind(kind) for kind in emitter.emit()], rechunk=False)
        files.write(cut_lines(texts))
        progress(rows.stop)
    files.close()
    manifest = describe_run(p, fleet, files.written, float(prompt.mean()))
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return files.written


def build_truth(p: Parameters, fleet: Fleet, w: Workload, truth: Truth, ids: Identities) -> pl.DataFrame:
    """Build the ground truth, one row per request.

    Identity, what was asked for, ttft_ms, seg_<segment> (ms; all NULL where no first token came), fault (site or NULL),
    broken_ns (when it lost an engine, NULL: never) and t_<milestone>, true ns since the Unix epoch; t_r_... by rank.
    """
    rows = np.arange(p.requests)
    broken = find_broken(fleet, w, truth)
    got_token = truth.at["first_byte"] <= broken
    sites = np.array([f.site for f in p.faults] + [None], dtype=object)
    names = {role: np.array([e.name for e in engines], dtype=object) for role, engines in
             (("prefill", fleet.prefill), ("decode", fleet.decode), ("router", fleet.routers))}  # fmt: skip
    columns: dict[str, Any] = {
        "request_key": ids.keys(rows), "trace_id": ids.traces(rows), "p_id": ids.prefill_ids(rows),
        "d_id": ids.decode_ids(rows), "mode": np.where(w.push, "push", "pull"),
        "prefill_engine": names["prefill"][w.prefill].tolist(), "decode_engine": names["decode"][w.decode].tolist(),
        "router": names["router"][w.router].tolist(), "prompt_tokens": w.prompt, "output_tokens": w.output,
        "fault": sites[w.fault].tolist(), "broken_ns": pl.Series(broken + 0).set(pl.Series(broken == NEVER), None),
        "ttft_ms": (truth.at["first_byte"] - truth.at["sent"]) / MS,
    }  # fmt: skip
    columns |= {f"seg_{name}": values / MS for name, values in truth.segments.items()}
    for name, values in truth.at.items():
        times = values.astype(np.int64) + EPOCH
        columns[f"t_{name}"] = times if times.ndim == 1 else pl.Series(times, dtype=pl.Array(pl.Int64, times.shape[1]))
    frame = pl.DataFrame(columns)
    segments = [name for name in frame.columns if name.startswith("seg_") or name == "ttft_ms"]
    known = pl.Series(got_token)
    return frame.with_columns(pl.when(known).then(pl.col(name)).alias(name) for name in segments)


def describe_run(p: Parameters, fleet: Fleet, written: Written, mean_prompt: float) -> dict[str, Any]:
    """Return the manifest: labelled, with every parameter."""
    parameters = asdict(p)
    engines = [
        {"id": engine.name, "role": engine.role, "mode": engine.mode, "tensor_parallel": p.ranks, "instrumented": True,
         "killed_ns": None if engine.killed is None else EPOCH + engine.killed}
        for engine in (*fleet.prefill, *fleet.decode)
    ]  # fmt: skip
    return {
        "schema": 1,
        "synthetic": True,
        "notice": NOTICE,
        "mode": p.mode,
        "model": {"name": "synthetic (Qwen3-32B sizes)", "weights": "none"},
        "machine": {"cpu": "synthetic (P5en time scales)"},
        "backend": "synthetic",
        "transport": "synthetic (EFA time scales)",
        "cache_policy": {"block_size": p.block_tokens, "prefix_caching": False},
        "routing": {"policy": "random engine of the request's mode, past engines that are down"},
        "workload": {
            "requests": p.requests, "rate": p.with_rate(mean_prompt), "seed": p.seed, "input_lens": list(p.input_lens),
            "mean_prompt_tokens": mean_prompt,
        },
        "engines": engines,
        "faults": {f.site: {"ms": f.ms, "share": f.share} for f in p.faults},
        "spans": written.spans,
        "parameters": parameters,
        "clocks": "client stamps with its router's clock; one boot per host; see truth_clocks.parquet",
        "versions": {"kvlens": "synthetic", "vllm": "synthetic", "nixl": "synthetic"},
    }  # fmt: skip


class _Files:
    """Span files of every process, a new one when one is full."""

    def __init__(self, directory: Path, fleet: Fleet) -> None:
        self.written = Written()
        self._directory = directory
        self._rows = fleet.processes.to_dicts()
        self._envelopes = [encode_resource(row) for row in self._rows]
        self._open: dict[int, tuple[BinaryIO, int]] = {}
        for path in directory.glob("*.otlp.jsonl*"):
            path.unlink()

    def write(self, lines: pl.DataFrame) -> None:
        """Append lines to their processes' files."""
        for process, spans, text in lines.select("process", "spans", "text").iter_rows():
            head, tail = self._envelopes[process]
            data = f"{head}{text}{tail}".encode()
            self._choose(process).write(data)
            self.written.spans += spans
            self.written.bytes += len(data)

    def _choose(self, process: int) -> BinaryIO:
        file, number = self._open.get(process, (None, -1))
        if file is None or file.tell() > FILE_BYTES:
            if file is not None:
                file.close()
            row, number = self._rows[process], number + 1
            name = f"{row['service']}-{row['engine']}-{row['pid']}-{number}.otlp.jsonl"
            file = (self._directory / name).open("wb")
            self._open[process] = (file, number)
            self.written.files += 1
        return file

    def close(self) -> None:
        """Close them all."""
        for file, _ in self._open.values():
            file.close()

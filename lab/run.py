"""The pair as a whole: engines, router and load generator of one run directory.

with Pair(mode="push", out=Path("runs/push")) as pair:
    records = pair.run_workload(Workload(requests=20, rate=1.0))
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from .cache_usage import FILE as CACHE_USAGE_FILE
from .conversations import Policy
from .engine import MODES, Engine
from .errors import LabError
from .faults import Fault, write_faults
from .host_clock import HostClock
from .layout import choose_run_directory, make_specs
from .load_process import run_load_generator
from .loadgen import Record
from .manifest import make_manifest, write_manifest
from .model import SERVED_NAME, build_model
from .ports import HOST, choose_port
from .process import Child, stop_all
from .reference import generate_alone
from .router_file import RouterFile, write_router_config
from .workload import WARMUP_PREFIX, Workload

STOCK_SIDES = ("p", "d", "both")
REFERENCE_PREFIX = f"{WARMUP_PREFIX}reference-"
_ROUTER_READY_S = 30.0

Progress = Callable[[str], None]


class Pair:
    """A running P/D pair: one prefill engine, one or more decoders, the router.

    Args:
        mode: push, pull or bidirectional.
        stock: side that runs vLLM's own connector: "p", "d", "both" or None for kvlens on both.
        tp: tensor-parallel size of every engine (with more than 1 the engines share all cores).
        decoders: number of decode engines.
        out: run directory; default runs/<mode>-<time>.
        prefix_caching: vLLM's prefix cache (off in the published set-ups).
        otlp_endpoint: makes vLLM keep `traceparent` (and export its own spans there).
        extra_config: added to kv_connector_extra_config of all engines.
        env: added to the environment of the engines.
        arguments: added to vLLM's command line of the engines.
        load_failure_policy: vLLM's kv_load_failure_policy ("fail" or "recompute"); None for its default.
        propagate, rewrite_ids: the router's handling of traceparent and request ids, see RouterConfig.
        conversations: the router's policy for conversations, fields of `conversations.Policy`.
        retry: the router sends a prefill leg that failed with a readback again without.
        cache_usage: note vLLM's cache usage in the run; None: in bidirectional mode.
        clocks: engines (P0, D0, ...) that live as if on another host, with wrong clocks: HostClock or "-120ms,40ppm".
        faults: install the fault sites (off for overhead measurements).
        router_port: fixed port of the router; a free one by default.
        model_cache: folder of the model.
        progress: called with a line for each step.

    Attributes after the start: router_url, engines (engines[0] is P), out.

    Raises:
        LabError: a setting makes no sense, a port is taken, an engine or the router died.
    """

    def __init__(
        self,
        mode: str = "pull",
        *,
        stock: str | None = None,
        tp: int = 1,
        decoders: int = 1,
        out: Path | str | None = None,
        prefix_caching: bool = False,
        otlp_endpoint: str | None = None,
        extra_config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        load_failure_policy: str | None = None,
        propagate: str = "client",
        rewrite_ids: bool = False,
        conversations: Mapping[str, Any] | None = None,
        retry: bool = True,
        cache_usage: bool | None = None,
        clocks: Mapping[str, HostClock | str] | None = None,
        faults: bool = True,
        router_port: int | None = None,
        model_cache: Path | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        if mode not in MODES:
            raise LabError(f"there is no mode {mode!r}", f"use one of: {', '.join(MODES)}")
        if stock not in (None, *STOCK_SIDES):
            raise LabError(f"there is no side {stock!r}", f"use one of: {', '.join(STOCK_SIDES)}")
        if tp < 1 or decoders < 1:
            raise LabError("tensor-parallel size and number of decoders must be at least 1", "use 1 or more")
        self.mode, self.stock, self.out = mode, stock, choose_run_directory(mode, out)
        retention_s = (extra_config or {}).get("decoder_kv_blocks_ttl", Policy.retention_s)
        self._routing = {
            "propagate": propagate, "rewrite_ids": rewrite_ids, "retry": retry,
            "conversations": asdict(Policy(**{"retention_s": retention_s, **(conversations or {})})),
        }  # fmt: skip
        self._progress, self._references = progress, count()
        self.fault_file = self.out / "faults.json" if faults else None
        self._router_port = choose_port(router_port, "the router")
        self.router_url = f"http://{HOST}:{self._router_port}"
        self._model = build_model(model_cache)
        notes_usage = mode == "bidirectional" if cache_usage is None else cache_usage
        shared = {
            "mode": mode, "model": self._model, "tensor_parallel": tp, "prefix_caching": prefix_caching,
            "otlp_endpoint": otlp_endpoint, "connector_extra": extra_config or {}, "traces": self.out / "traces",
            "fault_file": self.fault_file, "env": env or {}, "arguments": tuple(arguments),
            "load_failure_policy": load_failure_policy,
            "cache_usage": self.out / CACHE_USAGE_FILE if notes_usage else None,
        }  # fmt: skip
        specs = make_specs(shared, stock, decoders, {self._router_port}, self.out, clocks=clocks or {})
        self.engines = [Engine(spec) for spec in specs]
        self._router = Child(
            "router", [sys.executable, "-m", "lab.router", "--config", str(self.out / "router.json")],
            self.out / "logs" / "router.log",
        )  # fmt: skip
        self._workloads: list[dict[str, Any]] = []

    def __enter__(self) -> Pair:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def prefill(self) -> Engine:
        """Return the prefill engine."""
        return self.engines[0]

    @property
    def decode(self) -> Engine:
        """Return the first decode engine."""
        return self.engines[1]

    @property
    def router_pid(self) -> int:
        """Return the router's process id."""
        return self._router.pid

    def start(self) -> None:
        """Start all processes and wait until they serve; stops what runs if one of them fails."""
        (self.out / "traces").mkdir(parents=True, exist_ok=True)
        (self.out / "logs").mkdir(exist_ok=True)
        if self.fault_file:
            write_faults(self.fault_file, {})
        router = RouterFile(self.mode, self._router_port, self.out / "traces", self.fault_file, self._routing)
        write_router_config(self.out / "router.json", router, [engine.spec for engine in self.engines])
        try:
            for engine in self.engines:
                engine.start()
            self._router.start()
            for engine in self.engines:
                self._progress(f"waiting for {engine.child.name}")
                engine.wait_ready(self._require_alive)
            self._progress("waiting for the router")
            self._router.wait_ready(self._is_router_ready, _ROUTER_READY_S, self._require_alive)
            self.write_manifest()
        except BaseException:
            # Also KeyboardInterrupt: __exit__ is not called when __enter__ raises.
            self.stop()
            raise

    def stop(self) -> None:
        """Stop router and engines; nothing of them is left behind."""
        self._progress("stopping")
        self._router.stop(grace_s=5.0)
        stop_all([engine.child for engine in self.engines])

    def check(self) -> None:
        """Raise ProcessDiedError if an engine or the router has ended."""
        for child in (*(engine.child for engine in self.engines), self._router):
            child.require_alive()

    def set_faults(self, faults: Mapping[str, Fault | Mapping[str, Any] | float]) -> None:
        """Replace the faults that are on; engines and router follow within a few hundredths of a second."""
        if self.fault_file is None:
            raise LabError("this pair was started without fault sites", "start it with faults=True")
        write_faults(self.fault_file, faults)

    def clear_faults(self) -> None:
        """Switch all faults off."""
        self.set_faults({})

    def warm_up(self, input_lens: Sequence[int], count: int = 1, output_len: int = 4) -> None:
        """Send requests of every length to every decoder, so that no measurement pays for a first time.

        The first contact of two engines is a handshake, and the first step of a new shape allocates.
        """
        total = count * (len(self.engines) - 1)
        for length in sorted(set(input_lens)):
            self._progress(f"warming up with {length} tokens")
            workload = Workload(
                requests=total, concurrency=1, input_lens=(length,), output_len=output_len,
                id_prefix=f"{WARMUP_PREFIX}{length}", turns=2 if self.mode == "bidirectional" else 1,
            )  # fmt: skip
            failed = [record for record in self._generate_load(workload, measured=False) if record["error"]]
            self.check()
            if failed:
                raise LabError(f"a warm-up request failed: {failed[0]['error']}", f"read {self.out / 'logs'}")

    def run_workload(self, workload: Workload, on_record: Callable[[Record], None] = lambda _: None) -> list[Record]:
        """Run a workload from a process of its own; returns its records, also appended to client.jsonl.

        Args:
            workload: what to send.
            on_record: called with each record as its request ends.

        Raises:
            ProcessDiedError: the load generator itself failed (failed requests are records with an error).
        """
        self._workloads.append(workload.to_json())
        self.write_manifest()
        return self._generate_load(workload, measured=True, on_record=on_record)

    def generate(
        self, prompt_token_ids: Sequence[int], max_tokens: int, engine: str | None = None, **extra: Any
    ) -> list[int]:
        """Return the greedy tokens that one engine alone makes of a prompt: the reference for a disaggregated one.

        Args:
            prompt_token_ids: the prompt.
            max_tokens: length of the answer.
            engine: "prefill" or "decode" (default).
            extra: more fields of the request body.
        """
        target = self.prefill if engine == "prefill" else self.decode
        return generate_alone(
            target, prompt_token_ids, max_tokens, f"{REFERENCE_PREFIX}{next(self._references)}", extra
        )

    def describe(self) -> dict[str, Any]:
        """Return what ``lab up --json`` prints."""
        return {
            "router_url": self.router_url,
            "mode": self.mode,
            "model": SERVED_NAME,
            "run": str(self.out),
            "fault_file": str(self.fault_file) if self.fault_file else None,
            "engines": [engine.describe() for engine in self.engines],
        }

    def write_manifest(self, **more: Any) -> None:
        """Write the run's conditions; called again with every workload."""
        # A conversation stays with its D by the policy beside it.
        router = {"policy": "round-robin", **self._routing, "url": self.router_url}
        engines = [engine.describe() for engine in self.engines]
        # The last workload by its plain name too: most runs have one.
        last = self._workloads[-1] if self._workloads else None
        write_manifest(
            self.out,
            make_manifest(
                self.mode, engines, router, self._model, self._workloads, workload=last, stock=self.stock,
                connector=engines[0]["connector"], faults=self._read_faults(), **more,
            ),
        )  # fmt: skip

    def _read_faults(self) -> dict[str, Any]:
        if self.fault_file is None or not self.fault_file.exists():
            return {}
        return dict(json.loads(self.fault_file.read_text(encoding="utf-8")))

    def _generate_load(
        self, workload: Workload, *, measured: bool, on_record: Callable[[Record], None] = lambda _: None
    ) -> list[Record]:
        with tempfile.TemporaryDirectory(prefix="kvlens-lab-") as scratch:
            spec = Path(scratch) / "workload.json"
            spec.write_text(json.dumps(workload.to_json()), encoding="utf-8")
            command = [sys.executable, "-m", "lab.loadgen", "--url", self.router_url, "--mode", self.mode]
            command += ["--workload", str(spec)]
            if measured:
                command += ["--out", str(self.out / "client.jsonl")]
            log = self.out / "logs" / "loadgen.log"
            return run_load_generator(command, log, on_record)

    def _require_alive(self) -> None:
        for engine in self.engines:
            engine.child.require_alive()

    def _is_router_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.router_url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

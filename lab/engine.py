"""One vLLM engine of the pair: its command line, environment, start, readiness and end."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cache_usage import ENV_FILE as ENV_CACHE_USAGE
from .host_clock import OtherHost, describe_host
from .model import SERVED_NAME
from .ports import HOST
from .process import Child
from .start_method import ENV_METHOD
from .stock_fixes import ENV_READBACK_ONCE

MODES = ("push", "pull", "bidirectional")
READY_TIMEOUT_S = 300.0
ENGINE_NICE = 5
"""Router and client are scheduled before the engines, so that their clocks do not measure the engines' load."""

# float32 because bfloat16 is slow on AVX2; eager because compiling takes longer than the demo.
SERVING_ARGUMENTS = (
    "--dtype=float32",
    "--enforce-eager",
    "--block-size=32",
    "--max-model-len=8192",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=2048",
    "--disable-uvicorn-access-log",
    # vLLM's default of 0 kills the engine process on SIGTERM, and with it the last second of its spans.
    "--shutdown-timeout=10",
)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "KMP_BLOCKTIME": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    ENV_METHOD: "fork",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
    # A killed engine loses at most this much of its spans (ms).
    "OTEL_BSP_SCHEDULE_DELAY": "500",
}


@dataclass(frozen=True)
class EngineSpec:
    """Everything that decides how one engine runs.

    role: "prefill" or "decode"; id: NIXL engine id; port, side_channel_port: TCP ports on 127.0.0.1;
    instrumented: kvlens connector instead of the stock one; cores: cores it may use, all when empty;
    arguments: more of vLLM's own, after the lab's; load_failure_policy: vLLM's kv_load_failure_policy, None for its
    default (fail); cache_usage: file in which the cache's usage is noted; host: the one that it pretends to live on,
    None for this machine.
    """

    role: str
    id: str
    mode: str
    port: int
    side_channel_port: int
    model: Path
    log: Path
    instrumented: bool = True
    tensor_parallel: int = 1
    prefix_caching: bool = False
    otlp_endpoint: str | None = None
    connector_extra: Mapping[str, Any] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    traces: Path | None = None
    fault_file: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    load_failure_policy: str | None = None
    cache_usage: Path | None = None
    host: OtherHost | None = None

    @property
    def url(self) -> str:
        """Return the engine's HTTP address."""
        return f"http://{HOST}:{self.port}"


def connector_config(spec: EngineSpec) -> dict[str, Any]:
    """Return vLLM's ``--kv-transfer-config`` of an engine."""
    bidirectional = spec.mode == "bidirectional"
    name = "NixlPushConnector" if spec.mode == "push" else "NixlPullConnector"
    if bidirectional and spec.instrumented:
        name = "NixlBidirectionalConnector"
    extra: dict[str, Any] = {"num_threads": 0}
    if bidirectional:
        extra["bidirectional_kv_xfer"] = True
    config: dict[str, Any] = {
        "kv_connector": name,
        "kv_role": "kv_producer" if spec.role == "prefill" else "kv_consumer",
        "engine_id": spec.id,
        "kv_connector_extra_config": {**extra, **spec.connector_extra},
    }
    if spec.load_failure_policy:
        config["kv_load_failure_policy"] = spec.load_failure_policy
    if spec.instrumented:
        config["kv_connector_module_path"] = "instrumented_connectors"
    return config


def build_command(spec: EngineSpec) -> list[str]:
    """Return the engine's command line.

    ``vllm serve`` is not used: it looks up a distribution named vllm, which the CPU build is not.
    """
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(spec.model), "--served-model-name", SERVED_NAME]
    command += ["--host", HOST, "--port", str(spec.port), *SERVING_ARGUMENTS]
    command += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    command += ["--enable-prefix-caching" if spec.prefix_caching else "--no-enable-prefix-caching"]
    command += ["--kv-transfer-config", json.dumps(connector_config(spec), sort_keys=True)]
    if spec.otlp_endpoint:
        command += ["--otlp-traces-endpoint", spec.otlp_endpoint]
    return [*command, *spec.arguments]


def build_environment(spec: EngineSpec, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the engine's environment: the caller's, the lab's settings, the spec's own."""
    env = {**base, **ENVIRONMENT}
    env |= {
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel_port),
        "KVLENS_LAB": "1",
        "KVLENS_LAB_ROLE": spec.role,
        "KVLENS_LAB_ENGINE": spec.id,
    }
    if spec.mode == "bidirectional":
        env["KVLENS_LAB_STREAM_PARAMS"] = "1"
        if spec.load_failure_policy == "recompute":
            env[ENV_READBACK_ONCE] = "1"
    if spec.traces:
        env["KVLENS_TRACES_DIR"] = str(spec.traces)
    if spec.fault_file:
        env["KVLENS_LAB_FAULT_FILE"] = str(spec.fault_file)
    if spec.cache_usage:
        env[ENV_CACHE_USAGE] = str(spec.cache_usage)
    if spec.host:
        env |= spec.host.to_environment(env)
    return {**env, **spec.env}


def assign_cores(role: str, index: int, tensor_parallel: int, available: list[int]) -> tuple[int, ...]:
    """Return the cores of an engine: P the first, decoders the others in turn; all of them with several ranks.

    Args:
        role: "prefill" or "decode".
        index: number of the decoder, from 0.
        tensor_parallel: ranks of the engine.
        available: cores that this process may use.
    """
    if tensor_parallel > 1 or len(available) < 2:
        return ()
    return (available[0],) if role == "prefill" else (available[1 + index % (len(available) - 1)],)


class Engine:
    """A running vLLM server."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.role, self.id, self.url, self.log = spec.role, spec.id, spec.url, spec.log
        self.child = Child(
            f"{spec.role} engine {spec.id}",
            build_command(spec),
            spec.log,
            env=build_environment(spec),
            cores=spec.cores,
            nice=ENGINE_NICE,
        )

    @property
    def pid(self) -> int:
        """Return the server's process id (its workers are in the same process group)."""
        return self.child.pid

    def start(self) -> None:
        """Start the server; returns at once."""
        self.child.start()

    def wait_ready(self, on_wait: Callable[[], None] = lambda: None, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the server answers; raises ProcessDiedError with the log's tail if it never will."""
        self.child.wait_ready(self.is_ready, timeout_s, on_wait)

    def is_ready(self) -> bool:
        """Return whether /health answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_alive(self) -> bool:
        """Return whether the server process runs."""
        return self.child.is_alive()

    def kill(self) -> None:
        """Kill the engine with all its processes, as a crash would."""
        self.child.kill()

    def describe(self) -> dict[str, Any]:
        """Return what the manifest and ``lab up --json`` say of this engine."""
        spec = self.spec
        return {
            "role": spec.role,
            "id": spec.id,
            "url": spec.url,
            "side_channel_host": HOST,
            "side_channel_port": spec.side_channel_port,
            "instrumented": spec.instrumented,
            "tensor_parallel": spec.tensor_parallel,
            "prefix_caching": spec.prefix_caching,
            "cores": list(spec.cores),
            "clock": describe_host(spec.host),
            "start_method": build_environment(spec, {})[ENV_METHOD],
            "pid": self.pid,
            "log": str(spec.log),
            "connector": connector_config(spec),
            "stock_fixes": ["readback_once"] if ENV_READBACK_ONCE in build_environment(spec, {}) else [],
            "arguments": [*SERVING_ARGUMENTS, *spec.arguments],
        }

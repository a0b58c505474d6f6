"""vLLM's NIXL worker must leave the thread that computes on the core that the lab gave its engine."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from lab import plugin

base_worker = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker")
pull_worker = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker")
platforms = pytest.importorskip("vllm.platforms")


class BeyondThis(Exception):
    """The constructor has come to what follows the choice of cores; the rest needs a whole engine."""


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Begin to construct vLLM's worker on a host of one NUMA node with four cores; returns where it moves itself."""
    platform, chosen = type(platforms.current_platform), []

    def stop(_: object) -> str:
        raise BeyondThis

    # Set, not replaced, so that what the plugin changes is undone with it.
    monkeypatch.setattr(platform, "discover_numa_topology", classmethod(lambda cls: [[0, 1, 2, 3]]))
    monkeypatch.setattr(platform, "get_nixl_memory_type", classmethod(stop))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: chosen.append(list(cores)))
    monkeypatch.setattr(base_worker, "NixlWrapper", lambda *_: SimpleNamespace())
    monkeypatch.setattr(base_worker, "nixl_agent_config", None)
    monkeypatch.setattr(base_worker, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(base_worker, "get_tensor_model_parallel_world_size", lambda: 1)
    return chosen


def construct() -> None:
    transfer = SimpleNamespace(get_from_extra_config=lambda _, default: default, kv_buffer_device="cpu")
    config = SimpleNamespace(
        kv_transfer_config=transfer, cache_config=SimpleNamespace(block_size=32),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        parallel_config=SimpleNamespace(prefill_context_parallel_size=1, decode_context_parallel_size=1),
    )  # fmt: skip
    cache = SimpleNamespace(transfer_groups=[], kv_cache_groups=[], num_blocks=8)
    with pytest.raises(BeyondThis):
        pull_worker.NixlPullConnectorWorker(config, "P0", cache)


def test_stock_moves_every_engine_to_the_last_core(moves: list[Any]) -> None:
    """What the plugin is there for; when this fails, vLLM has changed and the plugin's part may go."""
    construct()
    assert moves == [[3]]


def test_the_lab_leaves_it_where_it_is(moves: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLENS_LAB", "1")
    for name in ("KVLENS_LAB_FAULT_FILE", "KVLENS_LAB_STREAM_PARAMS", "KVLENS_LAB_READBACK_ONCE",
                 "KVLENS_LAB_CACHE_USAGE"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for part in ("_replace_sched_yield", "_slow_progress_thread"):  # they change this process for good
        monkeypatch.setattr(plugin, part, lambda: None)
    plugin.register()
    construct()
    assert moves == []

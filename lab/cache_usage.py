"""Write down what vLLM itself says of its KV cache during a run: `cache_usage.jsonl`, one line per engine and change.

The published gauge `vllm:kv_cache_usage_perc` is set at the end of an engine step: what a step takes and gives back is
never in it, and scraping it misses the rest. So the figure that it publishes, the block pool's own, is noted in the
engine whenever blocks are taken or given back.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from instrumented_connectors.clock import Clock

SCHEMA = 2
"""Version of a record. 2: {schema, engine, unix_ns, blocks (used from then on), total_blocks}."""

FILE = "cache_usage.jsonl"
ENV_FILE = "KVLENS_LAB_CACHE_USAGE"
_CHANGES = ("get_new_blocks", "touch", "free_blocks", "unpin_blocks")


def install_cache_usage(path: Path, engine: str) -> None:
    """Have vLLM's block pool note every change of its usage in a file."""
    from vllm.v1.core.block_pool import BlockPool

    note_changes(BlockPool, path, engine)


def note_changes(pool: type, path: Path, engine: str) -> None:
    """Replace the methods of a block pool that take blocks or give them back by ones that note what is used then."""
    if getattr(pool, "kvlens_lab", False):
        return
    clock = Clock()
    # Lines of several engines may alternate in the file: each is written at once, at its end.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    noted: dict[int, int] = {}

    def note(self: Any) -> None:
        # vLLM's own figure leaves out the null block, which nobody holds.
        total = self.num_gpu_blocks - 1
        used = total - self.get_num_free_blocks()
        if noted.get(id(self)) == used:
            return
        noted[id(self)] = used
        record = {
            "schema": SCHEMA, "engine": engine, "unix_ns": clock.wall_ns(), "blocks": used, "total_blocks": total,
        }  # fmt: skip
        os.write(file, (json.dumps(record, separators=(",", ":")) + "\n").encode())

    def noting(stock: Any) -> Any:
        def change(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return stock(self, *args, **kwargs)
            finally:
                note(self)

        return change

    for name in ("__init__", *_CHANGES):
        setattr(pool, name, noting(getattr(pool, name)))
    pool.kvlens_lab = True  # type: ignore[attr-defined]


def read_usage_log(run: Path) -> list[dict[str, Any]]:
    """Return a run's records; a half-written last line is left out."""
    records = []
    for line in (run / FILE).read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            records.append(json.loads(line))
    return records

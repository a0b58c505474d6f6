"""vLLM's block pool notes every change of its usage, and works as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm.v1.core.block_pool import BlockPool

from lab.cache_usage import note_changes, read_usage_log


@pytest.fixture
def pool(tmp_path: Path) -> BlockPool:
    class Noting(BlockPool):
        pass

    note_changes(Noting, tmp_path / "cache_usage.jsonl", "P0")
    note_changes(Noting, tmp_path / "cache_usage.jsonl", "P0")  # the second time changes nothing
    return Noting(num_gpu_blocks=101, enable_caching=True, hash_block_size=32)


def test_every_change_is_noted_when_it_happens(pool: BlockPool, tmp_path: Path) -> None:
    first, second = pool.get_new_blocks(3), pool.get_new_blocks(4)
    pool.touch(first)  # held already: nothing more is in use
    pool.free_blocks(first)
    pool.free_blocks(second)
    pool.free_blocks(first)
    notes = read_usage_log(tmp_path)
    assert [note["blocks"] for note in notes] == [0, 3, 7, 3, 0]
    assert pool.get_usage() == 0
    assert {(note["schema"], note["engine"], note["total_blocks"]) for note in notes} == {(2, "P0", 100)}
    assert [note["unix_ns"] for note in notes] == sorted(note["unix_ns"] for note in notes)


def test_a_refusal_stays_a_refusal(pool: BlockPool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="free blocks"):
        pool.get_new_blocks(101)
    assert [note["blocks"] for note in read_usage_log(tmp_path)] == [0]


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "cache_usage.jsonl").write_text(json.dumps({"engine": "P0"}) + '\n{"engine')
    assert read_usage_log(tmp_path) == [{"engine": "P0"}]

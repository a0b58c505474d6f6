"""The model is written once, the same every time, with a tokenizer that covers its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.numpy")

from lab.model import ModelShape, build_model  # noqa: E402

SMALL = ModelShape(layers=1, hidden=32, intermediate=64, heads=2, kv_heads=1, head_dim=16, vocabulary=400)


def test_model_is_complete_and_reproducible(tmp_path: Path) -> None:
    first, second = build_model(tmp_path / "a", SMALL), build_model(tmp_path / "b", SMALL)
    assert first.name == second.name
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    weights = safetensors.load_file(first / "model.safetensors")
    assert weights["lm_head.weight"].shape == (400, 32)
    assert tokenizers.Tokenizer.from_file(str(first / "tokenizer.json")).get_vocab_size() == 400
    assert "chat_template" in json.loads((first / "tokenizer_config.json").read_text())


def test_cached_model_is_used_and_another_shape_is_another_model(tmp_path: Path) -> None:
    first = build_model(tmp_path, SMALL)
    before = (first / "model.safetensors").stat().st_mtime_ns
    assert build_model(tmp_path, SMALL) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]

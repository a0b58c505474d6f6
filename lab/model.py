"""Write the lab's tiny model: Qwen3 shapes, seeded random weights, a byte-level BPE tokenizer. Nothing is downloaded.

Weights are written instead of using ``--load-format dummy``: dummy weights are so small that every layer vanishes
beside the embedding, greedy tokens then depend on the last token alone and would stay equal even with a wrong KV cache.
Here attention carries weight, so a wrong block changes the output.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SERVED_NAME = "kvlens-tiny"
FORMAT = 2
"""Version of the folder's content: a change here makes a new folder."""

FIRST_TEXT_TOKEN = 3
SPECIAL_TOKENS = ("<unk>", "<bos>", "<eos>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True)
class ModelShape:
    """Shape of the lab's model; about 0.3 s per 1,000 prompt tokens on one AVX2 core."""

    layers: int = 4
    hidden: int = 256
    intermediate: int = 512
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    vocabulary: int = 2048
    max_positions: int = 16384
    seed: int = 7


def default_cache() -> Path:
    """Return the model cache folder: KVLENS_LAB_MODEL_CACHE, else ``.cache/model`` below the current directory."""
    return Path(os.environ.get("KVLENS_LAB_MODEL_CACHE") or ".cache/model").resolve()


def build_model(cache: Path | None = None, shape: ModelShape | None = None) -> Path:
    """Return the folder of the model, writing it first if the cache has none.

    Args:
        cache: folder that holds one sub-folder per shape.
        shape: dimensions and seed of the weights.
    """
    shape = shape or ModelShape()
    target = (cache or default_cache()) / f"qwen3-{_digest(shape)}"
    if (target / "config.json").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".build-"))
    try:
        write_tokenizer(scratch, shape)
        write_weights(scratch, shape)
        _write_json(scratch / "config.json", model_config(shape))
        # Atomic, so that two runs that start together never see half a model; the loser keeps the winner's.
        try:
            scratch.rename(target)
        except OSError:
            if not (target / "config.json").exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def model_config(shape: ModelShape) -> dict[str, Any]:
    """Return the Hugging Face configuration of the model."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_positions,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }


def write_weights(folder: Path, shape: ModelShape) -> None:
    """Write seeded random weights; scales keep every layer's part of the residual stream visible."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> Any:
        return (rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)).astype(np.float32)

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Sharp attention: with gain 1 a long prompt averages out and one wrong block would hardly move the logits.
    sharp = np.full(shape.head_dim, 2.5, dtype=np.float32)
    ones = np.ones(shape.hidden, dtype=np.float32)
    weights: dict[str, Any] = {
        "model.embed_tokens.weight": rng.standard_normal((shape.vocabulary, shape.hidden), dtype=np.float32),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": ones,
            prefix + "post_attention_layernorm.weight": ones,
            prefix + "self_attn.q_norm.weight": sharp,
            prefix + "self_attn.k_norm.weight": sharp,
            prefix + "self_attn.q_proj.weight": matrix(query, shape.hidden),
            prefix + "self_attn.k_proj.weight": matrix(key, shape.hidden),
            prefix + "self_attn.v_proj.weight": matrix(key, shape.hidden),
            prefix + "self_attn.o_proj.weight": matrix(shape.hidden, query) * np.float32(2.0),
            prefix + "mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden),
            prefix + "mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden),
            prefix + "mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate),
        }
    # Copies: a tensor that is stored twice (the shared ones above) must be contiguous and its own.
    save_file({name: value.copy() for name, value in weights.items()}, str(folder / "model.safetensors"))


def write_tokenizer(folder: Path, shape: ModelShape) -> None:
    """Train a byte-level BPE tokenizer on the standard library's own text and write it with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.max_positions,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})


def _training_text() -> Iterator[str]:
    """Yield the source text of a few standard modules (present wherever Python is)."""
    import argparse
    import inspect
    import logging
    import subprocess
    import typing

    for module in (argparse, inspect, logging, subprocess, typing):
        yield inspect.getsource(module)


def _digest(shape: ModelShape) -> str:
    return hashlib.blake2b(json.dumps([FORMAT, asdict(shape)]).encode(), digest_size=6).hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")

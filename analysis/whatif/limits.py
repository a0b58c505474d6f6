"""Limits of an engine out of a run's manifest: token budget, requests in a step, block size, blocks."""

from __future__ import annotations

import re
from typing import Any

from .parameters import Source

OPTIONS = {"token_budget": "--max-num-batched-tokens", "sequences": "--max-num-seqs", "block_size": "--block-size"}
DEFAULTS = {"token_budget": 2048, "sequences": 128, "block_size": 16}
"""vLLM's defaults for a server without these options (they depend on the device; see docs/what-if.md)."""


def read_limits(manifest: dict[str, Any], role: str) -> tuple[dict[str, Any], list[Source]]:
    """Read the limits of the engines of a role: keyword arguments of EngineModel, and where they come from."""
    engine: dict[str, Any] = next((one for one in manifest.get("engines", []) if one.get("role") == role), {})
    arguments = " ".join(str(one) for one in engine.get("arguments", []))
    limits: dict[str, Any] = {}
    guessed = []
    for name, option in OPTIONS.items():
        found = re.search(rf"{option}[= ](\d+)", arguments)
        if not found:
            guessed.append(option)
        limits[name] = int(found[1]) if found else DEFAULTS[name]
    blocks = engine.get("kv_blocks")
    limits["blocks"] = int(blocks) if blocks else None
    origin = "manifest" + (f"; assumed: vLLM's default of {', '.join(guessed)}" if guessed else "")
    cache = f"{blocks} blocks" if blocks else f"enough blocks (unknown: see --{role}-blocks)"
    words = f"{limits['token_budget']} tokens, {limits['sequences']} requests a step; {cache}"
    return limits, [Source(f"{role} limits", words, origin)]

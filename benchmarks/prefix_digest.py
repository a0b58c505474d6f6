"""What a decoder pays on its scheduler's thread to hand out a digest of a sequence, and P off it to compare one."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

from instrumented_connectors.prefix_digest import begin_chain, compare_prefix, describe_prefix, make_key
from instrumented_connectors.prefix_giver import PrefixGiver
from instrumented_connectors.recorder import Recorder

from .measure import time_calls

BLOCK_SIZES = (16, 32, 128)
LENGTHS = (512, 4096, 32768)
OUTPUT = 256
"""Tokens of the answer: what is left to hash when the request ends."""


def run() -> None:
    """Print the figures."""
    source, key = random.Random(1), make_key(None)
    for block_size in BLOCK_SIZES:
        for length in LENGTHS:
            tokens = [source.randrange(150_000) for _ in range(length)]
            blocks = length // block_size
            giver = PrefixGiver(Recorder(10), block_size, key, 10)
            request = SimpleNamespace(request_id="r", all_token_ids=tokens, num_computed_tokens=length)
            answer = (True, {"do_remote_decode": True})
            begun = begin_chain(tokens[: length - OUTPUT], block_size, key)

            def give_begun(
                giver: PrefixGiver = giver, request: SimpleNamespace = request, answer: Any = answer, begun: Any = begun
            ) -> None:
                giver._begun["r"] = begun
                giver.give(request, answer)

            per_block = max(1, 400 // blocks)
            give = time_calls(lambda: giver.give(request, answer), blocks=100, per_block=per_block)  # noqa: B023
            usual = time_calls(give_begun, blocks=100, per_block=per_block)
            prefix = describe_prefix(tokens, block_size, key)
            compare = time_calls(
                lambda: compare_prefix(prefix, tokens, length, key), blocks=100, per_block=per_block,  # noqa: B023
            )  # fmt: skip
            size = len(json.dumps(prefix))
            print(
                f"  {length:6d} tokens, blocks of {block_size:3d}: D {give.median_ns / 1000:8.1f} us "
                f"({give.median_ns / 1000 / blocks:5.2f} us per block), with its prompt hashed before "
                f"{usual.median_ns / 1000:6.1f} us (p99 {usual.p99_ns / 1000:7.1f} us), "
                f"P {compare.median_ns / 1000:8.1f} us, {size:6d} bytes of JSON"
            )

"""Hands out the digest of what a decoder holds, with the transfer parameters of a request that ends."""

from __future__ import annotations

from collections import OrderedDict
from time import perf_counter_ns
from typing import Any

from . import events
from .events import Event
from .guard import guarded
from .prefix_digest import PARAMETER, Begun, begin_chain, describe_prefix
from .recorder import Recorder


class NullPrefixGiver:
    """Hands out nothing: the choice on engines that keep no blocks for a next turn."""

    def arrived(self, request: Any) -> None: ...
    def give(self, request: Any, result: Any) -> None: ...


class PrefixGiver(NullPrefixGiver):
    """Adds the digest to the transfer parameters of a decoder that keeps its blocks.

    The answer leaves with the request's last output, so what is still to be hashed then is hashed on the scheduler's
    thread: about a microsecond per block, see `benchmarks/prefix_digest.py`. The prompt's blocks are hashed before, on
    the background thread, while the request runs.

    Args:
        recorder: takes the prompts to the background thread; they go no further.
        block_size: tokens per KV-cache block.
        key: see `make_key`.
        limit: prompts whose chain is kept at most; the oldest are given up and counted in `evicted`.
    """

    def __init__(self, recorder: Recorder, block_size: int, key: bytes, limit: int) -> None:
        self._record = recorder.record
        self._block_size = block_size
        self._key = key
        self._limit = limit
        self._begun: OrderedDict[str, Begun] = OrderedDict()
        self.evicted = 0
        self.handlers = {events.PROMPT: self._on_prompt}

    @guarded
    def arrived(self, request: Any) -> None:
        """Have the prompt hashed in the background, if the request's blocks may be kept."""
        params = request.kv_transfer_params
        if isinstance(params, dict) and params.get("do_remote_prefill") and request.prompt_token_ids:
            self._record((events.PROMPT, perf_counter_ns(), request.request_id, request.prompt_token_ids))

    def _on_prompt(self, event: Event) -> None:
        _, _, request_id, tokens = event
        self._begun[request_id] = begin_chain(tokens, self._block_size, self._key)
        while len(self._begun) > self._limit:
            self._begun.popitem(last=False)
            self.evicted += 1

    @guarded
    def give(self, request: Any, result: Any) -> None:
        """Extend the answer; whatever fails leaves it as the stock connector made it."""
        held, answer = result
        begun = self._begun.pop(request.request_id, None)
        # Only a decoder's answer asks the next turn's prefill to decode remotely.
        if held and isinstance(answer, dict) and answer.get("do_remote_decode"):
            tokens = request.all_token_ids[: request.num_computed_tokens]
            answer[PARAMETER] = describe_prefix(tokens, self._block_size, self._key, begun)

"""Let a streamed completion carry its transfer parameters, which vLLM 0.32 returns for non-streamed ones only.

The bidirectional router needs them from D for the next turn. The engine adds one event before ``[DONE]``; the router
takes it out of the stream again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

EVENT_KEY = "kvlens_kv_transfer_params"


def install_stream_params() -> None:
    """Wrap vLLM's completion and chat stream generators (once per process)."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    _wrap(OpenAIServingCompletion, "completion_stream_generator", 2)
    _wrap(OpenAIServingChat, "chat_completion_stream_generator", 1)


def _wrap(owner: type, name: str, results_position: int) -> None:
    """Replace a stream generator by one that watches its argument number `results_position` (self not counted)."""
    stock = getattr(owner, name)
    if getattr(stock, "kvlens_lab", False):
        return

    async def generator(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        seen: dict[str, Any] = {}
        arguments = list(args)
        if len(arguments) > results_position:
            arguments[results_position] = _watch(arguments[results_position], seen)
        elif "result_generator" in kwargs:
            kwargs["result_generator"] = _watch(kwargs["result_generator"], seen)
        async for event in stock(self, *arguments, **kwargs):
            if seen and event.startswith("data: [DONE]"):
                yield f"data: {json.dumps({EVENT_KEY: seen})}\n\n"
            yield event

    generator.kvlens_lab = True  # type: ignore[attr-defined]
    setattr(owner, name, generator)


async def _watch(results: Any, seen: dict[str, Any]) -> AsyncIterator[Any]:
    """Pass results through and keep the transfer parameters of the last one."""
    async for item in results:
        output = item[1] if isinstance(item, tuple) else item
        if output.kv_transfer_params:
            seen.clear()
            seen.update(output.kv_transfer_params)
        yield item

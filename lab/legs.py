"""The two legs of a request: what the router sends to P and to D. Pure functions on request bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

# Only meaningful for a whole answer; P answers with one token, not streamed.
_WHOLE_ANSWER = ("stream_options", "min_tokens", "conversation_id", "max_completion_tokens")
# What a later turn's prefill repeats of D's answer to read the conversation's blocks back.
_READBACK = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")
# kvlens_prefix: digests of what D holds, with which an instrumented P sees a changed history. Stock engines ignore it.
_READBACK_OPTIONAL = (
    "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "kvlens_prefix",
)  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """One engine as the router knows it: id, HTTP address, side channel of NIXL, tensor-parallel size."""

    id: str
    url: str
    host: str
    port: int
    tp_size: int = 1


def check_body(body: Mapping[str, Any]) -> str | None:
    """Return why a request cannot be split into legs, None if it can."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return "one prompt per request: the transfer parameters of several prompts would be mixed up"
    return None


def prompt_ids(body: Mapping[str, Any]) -> list[int] | None:
    """Return the prompt if it is one list of token ids, else None."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else None


def prefill_body(body: Mapping[str, Any], mode: str, extra: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """Return P's request: the same prompt, one token, not streamed.

    Args:
        body: the client's request.
        mode: push, pull or bidirectional.
        extra: more transfer parameters (trace context, readback).
        chat: whether it is a chat completion.
    """
    leg = {name: value for name, value in body.items() if name not in _WHOLE_ANSWER}
    leg |= {"stream": False, "max_tokens": 1}
    if chat:
        leg["max_completion_tokens"] = 1
    if mode != "push":
        # D's n sequences read one prompt. In push they pair with P's by name, so P needs as many.
        leg["n"] = 1
    leg["kv_transfer_params"] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
        **extra,
    }
    return leg


def decode_body(body: Mapping[str, Any], params: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return D's request: the client's own with the transfer parameters (without, D computes the prompt itself)."""
    leg = {name: value for name, value in body.items() if name not in ("conversation_id", "kv_transfer_params")}
    if params is not None:
        leg["kv_transfer_params"] = {**params, **extra}
    return leg


def push_params(prefill: Peer, request_id: str, chat: bool) -> dict[str, Any]:
    """Return D's transfer parameters in push, made from P's coordinates, which are known beforehand.

    vLLM pairs the two legs by their request ids without the random suffix, so both carry the same X-Request-Id.
    """
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.id,
        "remote_host": prefill.host,
        "remote_port": prefill.port,
        "remote_request_id": f"chatcmpl-{request_id}" if chat else f"cmpl-{request_id}-0",
        "remote_block_ids": None,
        "tp_size": prefill.tp_size,
    }


def readback_params(previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what P needs to read the blocks of an earlier turn from D; empty for a first turn."""
    if not previous or not all(previous.get(name) for name in _READBACK):
        return {}
    return {name: previous[name] for name in (*_READBACK, *_READBACK_OPTIONAL) if name in previous}

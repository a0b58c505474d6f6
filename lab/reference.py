"""Ask one engine alone, without the router: the reference for a disaggregated answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from .engine import Engine
from .errors import LabError
from .model import SERVED_NAME


def generate_alone(
    engine: Engine, prompt_token_ids: Sequence[int], max_tokens: int, request_id: str, extra: Mapping[str, Any]
) -> list[int]:
    """Return the greedy tokens that an engine makes of a prompt.

    Args:
        engine: whom to ask.
        prompt_token_ids: the prompt.
        max_tokens: length of the answer.
        request_id: X-Request-Id.
        extra: more fields of the request body.

    Raises:
        LabError: the engine did not answer.
    """
    body = {
        "model": SERVED_NAME, "prompt": list(prompt_token_ids), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True, **extra,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    request = urllib.request.Request(f"{engine.url}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return list(json.load(answer)["choices"][0]["token_ids"])
    except urllib.error.URLError as error:
        raise LabError(f"{engine.child.name} did not answer: {error}", f"read {engine.log}") from error

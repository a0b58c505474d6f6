"""Replace one method of a stock class, which is how the lab's faults get in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def replace_method(
    owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Replace a method (own or inherited) once by what `make` returns for it; return the replaced one."""
    stock = getattr(owner, name)
    replacement = wraps(stock)(make(stock))
    setattr(owner, name, replacement)
    return stock  # type: ignore[no-any-return]


def find_rank() -> int | None:
    """Return this process's tensor-parallel rank, None where there is no such group."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return int(get_tensor_model_parallel_rank())
    except (ImportError, AssertionError):
        return None

"""`--where KEY OP VALUE`: which runs meet a condition."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import KvlensError

PATTERN = re.compile(r"^\s*([\w.\-]+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*$", re.S)

ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Condition:
    """key OP value; a key without its beginning (vllm for versions.vllm) is enough where it is unique."""

    key: str
    operator: str
    value: str


def parse_condition(text: str) -> Condition:
    """Parse one condition. Raises KvlensError when it is none."""
    met = PATTERN.match(text)
    if met is None:
        raise KvlensError(
            f"cannot read the condition {text!r}",
            "mode=push, 'ttft_p50>200', vllm!=0.32.0 or model.name~qwen",
            exit_code=2,
        )
    return Condition(*met.groups())


def needs_headline(condition: Condition, conditions: Mapping[str, Any]) -> bool:
    """Whether a condition can only be decided with figures, which may have to be computed first."""
    return not _find_keys(condition.key, conditions)


def meets(values: Mapping[str, Any], condition: Condition) -> bool:
    """Whether a run meets a condition; one that lacks the key meets only !=."""
    found = [values[key] for key in _find_keys(condition.key, values)]
    if condition.operator == "!=":
        return not any(_is_equal(value, condition.value) for value in found)
    if condition.operator == "=":
        return any(_is_equal(value, condition.value) for value in found)
    if condition.operator == "~":
        return any(condition.value.lower() in str(value).lower() for value in found)
    return any(_is_ordered(value, condition) for value in found)


def check_keys(conditions: Iterable[Condition], known: Iterable[Mapping[str, Any]]) -> None:
    """Raise KvlensError when a key is in none of the runs, naming the closest ones that are."""
    keys = {key for values in known for key in values}
    for condition in conditions:
        if keys and not _find_keys(condition.key, dict.fromkeys(keys)):
            close = difflib.get_close_matches(condition.key, [*keys, *(key.rpartition(".")[2] for key in keys)], n=3)
            hint = ", ".join(dict.fromkeys(close)) or "mode, versions.vllm, workload.rate, ttft_p50"
            raise KvlensError(f"no run has a condition named {condition.key}", f"one of: {hint}", exit_code=2)


def _find_keys(key: str, values: Mapping[str, Any]) -> list[str]:
    return [key] if key in values else [known for known in values if known.endswith(f".{key}")]


def _is_equal(value: Any, text: str) -> bool:
    if isinstance(value, bool):
        return text.lower() in (("true", "on", "yes", "1") if value else ("false", "off", "no", "0"))
    if isinstance(value, tuple):
        return ",".join(map(str, value)) == text.replace(" ", "")
    number = _to_number(text)
    return value == number if isinstance(value, (int, float)) and number is not None else str(value) == text


def _is_ordered(value: Any, condition: Condition) -> bool:
    order = ORDERS[condition.operator]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = _to_number(condition.value)
        if number is None:
            raise KvlensError(f"{condition.key} is a number, {condition.value!r} is none", "ttft_p50>200", exit_code=2)
        return order(value, number)
    # Versions and dates: by their numbers, left to right.
    left, right = (tuple(map(int, re.findall(r"\d+", str(text)))) for text in (value, condition.value))
    return bool(left and right) and order((left > right) - (left < right), 0)


def _to_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

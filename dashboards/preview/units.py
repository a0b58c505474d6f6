"""Grafana's units, as far as the panels use them: a number with its unit, and a scale for an axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SECONDS = ((120.0, 1 / 60, "min"), (1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))
_BYTES = ((1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (1e3, 1e-3, "kB"), (0.0, 1.0, "B"))
_PLAIN = ((1e9, 1e-9, " bn"), (1e6, 1e-6, " m"), (1e4, 1e-3, " k"), (0.0, 1.0, ""))
_STEPS = {"s": _SECONDS, "bytes": _BYTES, "Bps": _BYTES}
_PER_SECOND = {"Bps": "/s", "reqps": " req/s", "ops": " /s"}


@dataclass(frozen=True)
class Scale:
    """Multiply a value by `factor` and write `suffix` behind it."""

    factor: float
    suffix: str

    def write(self, value: float) -> str:
        """Return the value as text, three significant digits."""
        scaled = value * self.factor
        text = f"{scaled:.0f}" if abs(scaled) >= 100 else f"{scaled:.3g}"
        return f"{text}{self.suffix}"


def choose_scale(unit: str, values: Iterable[float]) -> Scale:
    """Return the scale of a unit at which the largest value reads well."""
    largest = max((abs(value) for value in values), default=0.0)
    if unit == "percentunit":
        return Scale(100, " %")
    if unit == "ms":
        scale = choose_scale("s", [largest / 1000])
        return Scale(scale.factor / 1000, scale.suffix)
    steps = _STEPS.get(unit, _PLAIN)
    if not largest:
        return Scale(1.0, _suffix(unit, "s" if unit == "s" else "B" if steps is _BYTES else ""))
    factor, name = next((factor, name) for least, factor, name in steps if largest >= least)
    return Scale(factor, _suffix(unit, name))


def _suffix(unit: str, name: str) -> str:
    name = f" {name}" if unit in _STEPS and name else name
    return name + _PER_SECOND.get(unit, "")


def write_value(unit: str, value: float) -> str:
    """Return one value with its unit, at the scale that suits it."""
    return choose_scale(unit, [value]).write(value)

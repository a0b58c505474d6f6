"""What makes the slowest requests differ from the middle ones: mean segments per band of TTFT, differences, intervals.

Intervals are percentile bootstraps (Efron 1979) inside the two bands, requests drawn whole, so that what moves together
stays together; bands of more than LARGE requests draw their means from the normal distribution instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ..segments import CLASS_OF, SEGMENTS

Floats = npt.NDArray[np.float64]

TOPS = (0.99, 0.95, 0.90, 0.75)
MIDDLES = ((0.40, 0.60), (0.25, 0.75))
FEWEST = 5
"""A band needs this many requests: the highest of TOPS and the narrowest of MIDDLES that has them is taken."""
RESAMPLES = 1000
LARGE = 2000
SEED = 1
LEVEL = 0.95
NS_PER_MS = 1e6
PARTS = (*SEGMENTS, "residual")


@dataclass(frozen=True)
class Bands:
    """Requests of one mode by TTFT: (name, rows) from fast to slow; middle and top are two of these names."""

    bands: tuple[tuple[str, pl.DataFrame], ...]
    middle: str
    top: str

    def find(self, name: str) -> pl.DataFrame:
        """Return the rows of a band."""
        return dict(self.bands)[name]


def split_bands(rows: pl.DataFrame) -> Bands | None:
    """Split requests of one mode into bands of TTFT; None when there are too few to compare."""
    ordered = rows.sort("ttft")
    top = next((q for q in TOPS if round((1 - q) * rows.height) >= FEWEST), None)
    middle = next((ends for ends in MIDDLES if round((ends[1] - ends[0]) * rows.height) >= FEWEST), None)
    if top is None or middle is None:
        return None
    steps = [0.0, *middle, *(q for q in reversed(TOPS) if middle[1] < q <= top), 1.0]
    bands = []
    for low, high in pairwise(steps):
        part = ordered[round(low * rows.height) : round(high * rows.height)]
        bands.append((_name(low, high), part))
    return Bands(tuple(bands), _name(*middle), _name(top, 1.0))


def _name(low: float, high: float) -> str:
    if high == 1.0:
        return f"slowest {round(100 * (1 - low))} %"
    return f"fastest {round(100 * high)} %" if low == 0.0 else f"p{round(100 * low)} to p{round(100 * high)}"


def compare_bands(bands: Bands) -> list[dict[str, Any]]:
    """Compare the top band with the middle one, the segment that explains most first; ms.

    Each row: segment, class, middle_ms, top_ms, difference_ms with low_ms and high_ms, share of the TTFT's difference
    with share_low and share_high, and why_unresolved: None, "chance" (the interval holds 0) or "uncertainty" (below
    what clocks and the landing may err).
    """
    middle, top = _to_matrix(bands.find(bands.middle)), _to_matrix(bands.find(bands.top))
    rng = np.random.default_rng(SEED)
    means = top.mean(axis=0) - middle.mean(axis=0)
    drawn = _draw_means(top, rng) - _draw_means(middle, rng)
    whole, wholes = means.sum() or 1.0, drawn.sum(axis=1)
    wholes = np.where(wholes == 0, 1.0, wholes)
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(drawn, tails, axis=0)
    share_low, share_high = np.quantile(drawn / wholes[:, None], tails, axis=0)
    doubts = _find_doubts(bands)
    rows = []
    for place, name in enumerate(PARTS):
        if not (middle[:, place].any() or top[:, place].any()):
            continue
        rows.append({
            "segment": name, "class": CLASS_OF.get(name, "residual"),
            "middle_ms": middle[:, place].mean(), "top_ms": top[:, place].mean(), "difference_ms": means[place],
            "low_ms": low[place], "high_ms": high[place],
            "share": means[place] / whole, "share_low": share_low[place], "share_high": share_high[place],
            "why_unresolved": _judge(means[place], low[place], high[place], doubts.get(name, 0.0)),
        })  # fmt: skip
    rounded = [
        {key: round(float(value), 6) if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]
    return sorted(rounded, key=lambda row: -abs(row["difference_ms"]))


def _judge(difference: float, low: float, high: float, doubt: float) -> str | None:
    if abs(difference) < doubt:
        return "uncertainty"
    return "chance" if low <= 0 <= high else None


def _to_matrix(rows: pl.DataFrame) -> Floats:
    """One row per request, one column per part, ms; an absent segment took no time."""
    columns = [pl.col("residual" if name == "residual" else f"seg_{name}").fill_null(0) / NS_PER_MS for name in PARTS]
    return rows.select(column.alias(name) for name, column in zip(PARTS, columns, strict=True)).to_numpy()


def _draw_means(values: Floats, rng: np.random.Generator) -> Floats:
    """Draw means of the columns as the bootstrap does: RESAMPLES rows."""
    count = len(values)
    if count > LARGE:
        return rng.multivariate_normal(values.mean(axis=0), np.cov(values.T) / count, RESAMPLES, method="svd")
    weights = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return np.asarray(weights @ values / count)


def _find_doubts(bands: Bands) -> dict[str, float]:
    """Mean uncertainty of each segment in the band where it is larger, ms."""
    found: dict[str, float] = {}
    for name in SEGMENTS:
        sides = [bands.find(side)[f"unc_{name}"].mean() for side in (bands.middle, bands.top)]
        found[name] = max(float(side or 0.0) for side in sides) / NS_PER_MS  # type: ignore[arg-type]
    return found


def average_bands(bands: Bands) -> list[dict[str, Any]]:
    """Average every band: its name, number of requests, TTFT range and the mean of every part, ms."""
    return [
        {
            "band": name,
            "requests": rows.height,
            "ttft_low_ms": round(float(rows["ttft"].min()) / NS_PER_MS, 6),  # type: ignore[arg-type]
            "ttft_high_ms": round(float(rows["ttft"].max()) / NS_PER_MS, 6),  # type: ignore[arg-type]
            "mean_ms": {
                part: round(float(value), 6)
                for part, value in zip(PARTS, _to_matrix(rows).mean(axis=0), strict=True)
                if value
            },
        }
        for name, rows in bands.bands
        if rows.height
    ]

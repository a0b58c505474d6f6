"""One line that says why a request was slow: the segment that stands out most from its like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from .segments import SEGMENTS

STANDS_OUT = 0.2
"""A segment explains a request when its excess over the median is at least this share of the TTFT."""
FAR_BELOW = 1e18
"""Puts what is not resolved behind everything that is, in its own order."""

_NEEDED = ("ttft", *(f"{prefix}_{name}" for prefix in ("seg", "unc") for name in SEGMENTS))

HINTS = {
    "route": "the request waited at the router before it was sent to prefill",
    "prefill_ingress": "the prefill engine's front end was busy",
    "prefill_queue": "the prefill engine was busy with other prompts",
    "readback": "fetching an earlier turn's KV from the decode engine took it",
    "prefill_compute": "computing the prompt took it",
    "handoff_dispatch": "the router took its time between the prefill answer and the decode leg",
    "pairing": "the decode leg reached its scheduler only after the prompt was done",
    "decode_admission": "the decode engine had no room for its blocks yet",
    "registration": "the decode engine's registration reached prefill late",
    "handshake": "first contact of the two engines",
    "dispatch": "both sides were ready and the transfer was not posted yet",
    "post": "the NIXL submission call itself was slow",
    "wire": "moving the bytes took it",
    "completion_lag": "the bytes were there and the decode scheduler was not told",
    "decode_queue": "the KV was there and the first decode step was not scheduled",
    "first_decode": "the first decode step was slow",
    "delivery": "the token existed and did not reach the client",
}


def find_reasons(budgets: pl.DataFrame) -> pl.DataFrame:
    """Add reason_segment, reason_ns, reason_unc_ns and reason_excess_ns (over the median of equal mode and bucket).

    The segment with the largest excess is taken if it stands out, else the largest segment (excess 0). A segment that
    is smaller than its own uncertainty (unc_<segment>) is not ranked, unless there is no other.
    """
    found = {"which": np.zeros(budgets.height, dtype=np.int64)} | {
        name: np.zeros(budgets.height) for name in ("ns", "unc_ns", "excess_ns")
    }
    likes = budgets.select("mode", "bucket").with_row_index("row").group_by("mode", "bucket").agg("row")
    needed = budgets.select(_NEEDED)
    for rows in likes["row"]:
        for name, values in _explain_alike(needed[rows]).items():
            found[name][rows.to_numpy()] = values
    return budgets.with_columns(
        reason_segment=pl.Series(SEGMENTS, dtype=pl.String).gather(found["which"]),
        reason_ns=pl.Series(found["ns"]).cast(pl.Int64),
        reason_unc_ns=pl.Series(found["unc_ns"]).cast(pl.Int64),
        reason_excess_ns=pl.Series(found["excess_ns"]),
    )


def _explain_alike(alike: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
    """Which segment explains each of some requests of equal mode and bucket, its length, doubt and excess (ns).

    Segment by segment, so that nothing but the best so far is kept of each request; the first of equals is taken.
    """
    best, largest = (_Best.of(alike.height) for _ in range(2))
    for place, name in enumerate(SEGMENTS):
        value, doubt = (_to_floats(alike[f"{prefix}_{name}"]) for prefix in ("seg", "unc"))
        resolved = value >= doubt
        over = value - np.median(value)
        best.take(np.where(resolved, over, -np.inf), place, value, doubt)
        largest.take(np.where(resolved, value, value - FAR_BELOW), place, value, doubt)
    stands_out = best.score >= STANDS_OUT * alike["ttft"].cast(pl.Float64).to_numpy()
    found = {
        name: np.where(stands_out, getattr(best, name), getattr(largest, name)) for name in ("which", "ns", "unc_ns")
    }
    return found | {"excess_ns": np.where(stands_out, best.score, 0.0)}


@dataclass
class _Best:
    """Of each request the segment with the highest score so far: its place in SEGMENTS, length and doubt (ns)."""

    score: npt.NDArray[np.float64]
    which: npt.NDArray[np.int64]
    ns: npt.NDArray[np.float64]
    unc_ns: npt.NDArray[np.float64]

    @classmethod
    def of(cls, count: int) -> _Best:
        return cls(np.full(count, -np.inf), np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count))

    def take(
        self, score: npt.NDArray[np.float64], place: int, value: npt.NDArray[np.float64], doubt: npt.NDArray[np.float64]
    ) -> None:
        better = score > self.score
        for kept, new in ((self.score, score), (self.which, np.int64(place)), (self.ns, value), (self.unc_ns, doubt)):
            np.copyto(kept, new, where=better)


def _to_floats(lengths: pl.Series) -> npt.NDArray[np.float64]:
    """Lengths of one segment, ns; 0 where there is none (exact: a length fits a float)."""
    return lengths.fill_null(0).cast(pl.Float64).to_numpy()


def word_reason(  # noqa: PLR0917
    segment: str, value_ms: float, excess_ms: float, ttft_ms: float, residual_ms: float, uncertainty_ms: float
) -> str:
    """Word the reason of one request; all figures in ms, the uncertainty is that of the segment."""
    if residual_ms > value_ms:
        return f"{residual_ms:.1f} ms cannot be told apart: spans of one side are missing"
    beside = f", {excess_ms:.1f} ms above its like" if excess_ms > 0 else ""
    doubt = ""
    if value_ms < uncertainty_ms:
        doubt = f" (unresolved: it is known within {uncertainty_ms:.1f} ms only)"
    return f"{segment} {value_ms:.1f} ms ({value_ms / max(ttft_ms, 1e-9):.0%} of TTFT{beside}): {HINTS[segment]}{doubt}"

"""One line that says why a request was slow: the segment that stands out most from its like."""

from __future__ import annotations

import polars as pl

from .segments import SEGMENTS

STANDS_OUT = 0.2
"""A segment explains a request when its excess over the median is at least this share of the TTFT."""
FAR_BELOW = 1 << 60
"""Puts what is not resolved behind everything that is, in its own order."""

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
    values = [pl.col(f"seg_{name}").fill_null(0) for name in SEGMENTS]
    doubts = [pl.col(f"unc_{name}").fill_null(0) for name in SEGMENTS]
    resolved = [value >= doubt for value, doubt in zip(values, doubts, strict=True)]
    over = [
        pl.when(sure).then(value - value.median().over("mode", "bucket"))
        for value, sure in zip(values, resolved, strict=True)
    ]
    ranked = [
        pl.when(sure).then(value).otherwise(value - FAR_BELOW) for value, sure in zip(values, resolved, strict=True)
    ]
    worst, largest = pl.concat_list(over).list.arg_max(), pl.concat_list(ranked).list.arg_max()
    frame = budgets.with_columns(
        worst_excess=pl.max_horizontal(over),
        which_worst=worst,
        which_largest=largest,
        all_values=pl.concat_list(values),
        all_doubts=pl.concat_list(doubts),
    ).with_columns(stands_out=pl.col("worst_excess") >= STANDS_OUT * pl.col("ttft"))
    which = pl.when("stands_out").then("which_worst").otherwise("which_largest")
    return frame.with_columns(
        reason_segment=which.replace_strict(dict(enumerate(SEGMENTS)), return_dtype=pl.String),
        reason_ns=pl.col("all_values").list.get(which),
        reason_unc_ns=pl.col("all_doubts").list.get(which),
        reason_excess_ns=pl.when("stands_out").then(pl.col("worst_excess")).otherwise(0.0),
    ).drop("worst_excess", "which_worst", "which_largest", "all_values", "all_doubts", "stands_out")


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

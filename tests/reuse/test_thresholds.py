"""The threshold curve against a known cost model: fetch = 20 ms + 0.02 ms per token, compute = 0.2 ms per token."""

import numpy as np
import polars as pl
import pytest

from analysis.reuse.thresholds import draw_curve

MS = 1e6
FIXED, PER_FETCHED, PER_COMPUTED = 20.0, 0.02, 0.2
RIGHT = FIXED / (PER_COMPUTED - PER_FETCHED)  # 111 tokens


def fetch_ms(tokens):
    return FIXED + PER_FETCHED * tokens


def compute_ms(tokens):
    return PER_COMPUTED * tokens


def decide(tokens, threshold, *, noise=0.0, bias=1.0, width=0.1, samples=50, seed=1):
    """Decisions of a run with a threshold; noise: relative spread of what was measured; bias: of the estimates."""
    rng = np.random.default_rng(seed)
    tokens = np.asarray(tokens, dtype=float)
    fetched = tokens >= threshold
    frame = {"reason": np.where(fetched, "fetched", "below_threshold"), "fetch_tokens": tokens.astype(int)}
    for name, cost, taken in (("fetch", fetch_ms(tokens), fetched), ("recompute", compute_ms(tokens), ~fetched)):
        took = cost * MS * (1 + noise * rng.standard_normal(len(tokens)))
        frame |= {
            f"{name}_estimate_ns": (cost * MS * bias).astype(int),
            f"{name}_estimate_low_ns": (cost * MS * bias * (1 - width)).astype(int),
            f"{name}_estimate_high_ns": (cost * MS * bias * (1 + width)).astype(int),
            f"{name}_samples": np.full(len(tokens), samples),
            f"{name}_ns": [int(value) if is_taken else None for value, is_taken in zip(took, taken, strict=True)],
        }
    frame["threshold"] = np.full(len(tokens), threshold)
    return pl.DataFrame(frame, schema_overrides={"fetch_ns": pl.Int64, "recompute_ns": pl.Int64})


TOKENS = np.random.default_rng(5).integers(16, 1000, 400)


def truth(tokens, recorded, threshold):
    fetched = tokens >= threshold
    cost = np.where(fetched, fetch_ms(tokens), compute_ms(tokens))
    before = np.where(tokens >= recorded, fetch_ms(tokens), compute_ms(tokens))
    return float((cost - before).mean())


@pytest.mark.parametrize("recorded", [1, 64, 500, 2000])
def test_curve_is_the_truth_and_finds_the_right_threshold(recorded):
    curve = draw_curve(decide(TOKENS, recorded, noise=0.05))
    for row in curve.points.iter_rows(named=True):
        expected = truth(TOKENS, recorded, row["low"])
        assert abs(row["change_ms"] - expected) < max(4 * row["error_ms"], 0.2), row
        assert row["fetched_share"] == pytest.approx(np.mean(row["low"] <= TOKENS), abs=1e-9)
    best = curve.points.filter("is_best").row(0, named=True)
    assert abs(best["low"] - RIGHT) < 60
    if recorded in (500, 2000):
        assert curve.verdict == "better"
        assert "would have been better" in curve.conclusion


def test_the_recorded_threshold_changes_nothing():
    curve = draw_curve(decide(TOKENS, 64))
    row = curve.points.filter("is_recorded").row(0, named=True)
    assert (row["change_ms"], row["flipped"]) == (0, 0)


def test_no_evidence_within_the_uncertainty():
    # The two ways cost nearly the same around the crossing, and estimates rest on few samples.
    tokens = np.random.default_rng(6).integers(90, 135, 20)
    curve = draw_curve(decide(tokens, 200, noise=0.3, width=0.5, samples=3))
    assert curve.verdict in ("no evidence", "kept")
    assert "would have been better" not in curve.conclusion


def test_wrong_estimates_are_corrected_where_they_were_checked():
    # Estimates are twice the truth; half of the requests were fetched and half computed, so both can be checked.
    curve = draw_curve(decide(TOKENS, 500, noise=0.02, bias=2.0))
    assert curve.fetch.factor == pytest.approx(0.5, abs=0.02)
    assert curve.recompute.factor == pytest.approx(0.5, abs=0.02)
    row = min(curve.points.iter_rows(named=True), key=lambda row: abs(row["low"] - RIGHT))
    assert row["change_ms"] == pytest.approx(truth(TOKENS, 500, row["low"]), abs=1.5)


def test_unknown_flips_are_counted_not_invented():
    frame = decide(TOKENS, 1).with_columns(recompute_estimate_ns=pl.lit(None, pl.Int64))
    curve = draw_curve(frame)
    last = curve.points.row(-1, named=True)
    assert last["unknown"] == last["flipped"] > 0
    assert last["change_ms"] == 0
    assert curve.verdict == "no evidence"
    assert "too few" in curve.conclusion


def test_a_failed_fetch_would_have_been_avoided():
    frame = decide([300] * 10, 64).with_columns(reason=pl.lit("fetch_failed_recomputed"), fetch_ns=pl.lit(int(8 * MS)))
    curve = draw_curve(frame)
    never = curve.points.filter(pl.col("high").is_null()).row(0, named=True)
    assert never["change_ms"] == pytest.approx(-8)
    assert never["fetched_share"] == 0


def test_without_a_choice_there_is_no_curve():
    frame = decide([100], 64).with_columns(reason=pl.lit("no_remote_metadata"), fetch_tokens=pl.lit(0))
    curve = draw_curve(frame)
    assert curve.points.is_empty()
    assert curve.verdict == ""

"""What makes slow requests slow, against planted causes; intervals cover the truth about as often as they say."""

import numpy as np
import polars as pl
import pytest

from analysis.critical.bands import average_bands, compare_bands, split_bands
from analysis.segments import SEGMENTS

MS = 1e6


def make_rows(count, seed, planted=None, unc=None):
    """Requests with steady segments; a planted segment adds its ms to the slowest share of them."""
    rng = np.random.default_rng(seed)
    parts = {name: rng.gamma(4, mean / 4, count) for name, mean in MEANS.items()}
    for name, (share, extra) in (planted or {}).items():
        parts[name] = parts[name] + np.where(np.arange(count) < share * count, extra, 0.0)
    columns = {f"seg_{name}": (parts[name] * MS).astype(np.int64) for name in parts}
    whole = sum(columns.values())
    frame = pl.DataFrame({**columns, "residual": np.zeros(count, np.int64), "ttft": whole})
    absent = [pl.lit(None, pl.Int64).alias(f"seg_{name}") for name in SEGMENTS if name not in MEANS]
    doubts = [pl.lit(int((unc or {}).get(name, 0) * MS)).alias(f"unc_{name}") for name in SEGMENTS]
    return frame.with_columns(absent + doubts)


MEANS = {"prefill_compute": 100.0, "wire": 10.0, "delivery": 2.0, "first_decode": 8.0}


@pytest.mark.parametrize("count", [300, 6000])
def test_planted_cause_is_found_with_its_share(count):
    bands = split_bands(make_rows(count, 1, {"wire": (0.03, 800.0)}))
    rows = {row["segment"]: row for row in compare_bands(bands)}
    assert bands.top == {300: "slowest 5 %", 6000: "slowest 1 %"}[count]
    first = compare_bands(bands)[0]
    assert first["segment"] == "wire"
    assert first["why_unresolved"] is None
    planted = 800.0 * (1.0 if bands.top == "slowest 1 %" else 9 / 15)
    assert first["low_ms"] < planted < first["high_ms"] or first["difference_ms"] == pytest.approx(planted, rel=0.03)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1, abs=1e-4)
    assert rows["delivery"]["why_unresolved"] == "chance"


def test_difference_below_the_clocks_uncertainty_is_not_ranked():
    rows = make_rows(1000, 2, {"delivery": (0.02, 30.0)}, unc={"delivery": 60.0})
    found = {row["segment"]: row for row in compare_bands(split_bands(rows))}
    assert found["delivery"]["why_unresolved"] == "uncertainty"


def test_intervals_cover_the_true_difference():
    """Slow requests by a label of their own: the bands are then fixed groups, and 95 % intervals should hold 95 %."""
    inside = 0
    for seed in range(60):
        rows = make_rows(400, seed, {"wire": (0.05, 5000.0)})
        (wire,) = [row for row in compare_bands(split_bands(rows)) if row["segment"] == "wire"]
        inside += wire["low_ms"] <= 5000.0 <= wire["high_ms"]
    assert inside >= 0.85 * 60


def test_bands_hold_every_request_once_and_few_requests_have_none():
    rows = make_rows(777, 3)
    bands = split_bands(rows)
    assert sum(part.height for _, part in bands.bands) == 777
    averages = average_bands(bands)
    assert [band["ttft_high_ms"] for band in averages] == sorted(band["ttft_high_ms"] for band in averages)
    assert split_bands(make_rows(15, 3)) is None

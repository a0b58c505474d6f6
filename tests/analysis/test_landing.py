"""The landing estimate: calibration from tight transfers, inside the bounds, with its uncertainty."""

import polars as pl
import pytest

from analysis.landing import MIN_TIGHT, calibrate, estimate_landing

MS = 1_000_000
T0 = 1_790_000_000_000_000_000


def make_frame(rows):
    """rows: (bytes, true transfer ns, ns below, ns above) of one route."""
    return pl.DataFrame(
        {
            "x_engine": ["P"] * len(rows),
            "x_peer": ["D"] * len(rows),
            "x_direction": ["WRITE"] * len(rows),
            "bytes": [row[0] for row in rows],
            "post_end": [T0] * len(rows),
            "landed_after": [T0 + row[1] - row[2] for row in rows],
            "landed_done": [T0 + row[1] + row[3] for row in rows],
            "notified_at": pl.Series([None] * len(rows), dtype=pl.Int64),
        }
    )


def transfer(size, fixed=3 * MS, per_byte=0.5):
    return round(fixed + per_byte * size)


def test_line_through_the_sizes_is_recovered():
    sizes = [1_000_000 * n for n in range(1, 21)]
    frame = make_frame([(size, transfer(size), 0, 0) for size in sizes])
    (row,) = calibrate(estimate_landing(frame).drop("tight", "fixed_ns", "ns_per_byte")).to_dicts()
    assert row["tight"] == 20
    assert row["fixed_ns"] == pytest.approx(3 * MS)
    assert row["ns_per_byte"] == pytest.approx(0.5)


def test_equal_sizes_leave_no_fixed_part():
    frame = make_frame([(4_000_000, 2 * MS, 0, 0)] * 8)
    (row,) = calibrate(estimate_landing(frame).drop("tight", "fixed_ns", "ns_per_byte")).to_dicts()
    assert (row["fixed_ns"], row["ns_per_byte"]) == (0, 0.5)


def test_wide_brackets_take_the_prediction_and_stay_inside():
    tight = [(size * 1_000_000, transfer(size * 1_000_000), 0, 0) for size in range(1, 11)]
    wide = [
        (5_000_000, transfer(5_000_000), 4 * MS, 30 * MS),
        (5_000_000, 50 * MS, 5 * MS, 30 * MS),  # slower than predicted: the lower bound
        (80_000_000, 10 * MS, 5 * MS, 6 * MS),  # faster than predicted: the upper bound
    ]
    frame = estimate_landing(make_frame(tight + wide)).tail(3)
    assert (frame["landed"] - T0).to_list() == [transfer(5_000_000), 45 * MS, 16 * MS]
    assert frame["uncertainty_ns"].to_list() == [30 * MS, 35 * MS, 11 * MS]


def test_few_tight_transfers_calibrate_nothing():
    rows = [(1_000_000, 5 * MS, 0, 0)] * (MIN_TIGHT - 1) + [(1_000_000, 5 * MS, 5 * MS, 25 * MS)]
    last = estimate_landing(make_frame(rows)).row(-1, named=True)
    assert last["landed"] - T0 == 15 * MS
    assert last["uncertainty_ns"] == 15 * MS


def test_routes_are_not_pooled():
    slow = make_frame([(1_000_000, 40 * MS, 0, 0)] * 6).with_columns(x_direction=pl.lit("READ"))
    fast = make_frame([(1_000_000, 1 * MS, 0, 0)] * 6 + [(1_000_000, 1 * MS, 1 * MS, 60 * MS)])
    last = estimate_landing(pl.concat([slow, fast])).row(-1, named=True)
    assert last["landed"] - T0 == 1 * MS


def test_contradicting_bounds_meet_at_the_upper_one():
    frame = make_frame([(1, 10 * MS, 0, 5 * MS)]).with_columns(notified_at=pl.lit(T0 + 8 * MS))
    (row,) = estimate_landing(frame).to_dicts()
    assert (row["landed"] - T0, row["uncertainty_ns"]) == (8 * MS, 0)


def test_no_wire_no_landing():
    frame = make_frame([(1, 1, 0, 0)]).with_columns(landed_done=pl.lit(None, pl.Int64), notified_at=pl.lit(T0))
    (row,) = estimate_landing(frame).to_dicts()
    assert (row["landed"], row["uncertainty_ns"]) == (None, None)

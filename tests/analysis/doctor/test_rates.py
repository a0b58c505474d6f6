"""A route is called slow only where even the highest rate that the polls allow is slow."""

from __future__ import annotations

import polars as pl
import pytest

from analysis.doctor.rules._rates import list_routes

MS, SIZE = 1_000_000, 2 << 20


def list_wires(landed_after: int | None, count: int = 8) -> pl.DataFrame:
    row = {
        "engine": "D0", "peer": "P0", "direction": "READ", "outcome": "ok", "bytes": SIZE, "begin": 0,
        "landed_after": landed_after, "landed_before": 4 * MS, "finish": 4 * MS,
    }  # fmt: skip
    return pl.DataFrame([row] * count, schema_overrides={"landed_after": pl.Int64})


@pytest.mark.parametrize(
    ("landed_after", "at_most"),
    [(0, float("inf")), (2 * MS, SIZE / (2 * MS)), (None, SIZE / (4 * MS)), (-MS, float("inf"))],
)
def test_what_lies_between_two_polls_may_have_been_faster(landed_after: int | None, at_most: float) -> None:
    (route,) = list_routes(list_wires(landed_after)).to_dicts()
    assert (route["source"], route["target"], route["count"]) == ("P0", "D0", 8)
    assert route["rate"] == SIZE / (4 * MS)
    assert route["at_most"] == at_most

"""What keeps a breakdown of millions cheap gives what the plain way gives: ties, handshakes, results in place."""

from __future__ import annotations

import gc

import numpy as np
import polars as pl

from analysis.attempts import order_by_time
from analysis.handshakes import measure_handshakes
from analysis.summary import describe


def test_sort_looks_at_texts_where_stamps_are_equal() -> None:
    rng = np.random.default_rng(5)
    stamps = [None if stamp == 0 else int(stamp) for stamp in rng.integers(0, 40, 200)]
    frame = pl.DataFrame({"at": stamps, "id": [f"{number:03}" for number in rng.permutation(200)]})
    for last in (True, False):
        tied = frame.filter(pl.col("at").is_duplicated()).select("id")
        found = order_by_time(frame["at"], tied, nulls_last=last)
        assert frame[found].equals(frame.sort("at", "id", nulls_last=last))


def test_handshakes_inside_an_interval_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(6)
    begin = np.sort(rng.choice(10_000, 30, replace=False)) * 10
    took = np.minimum(rng.integers(1, 10, 30), np.append(np.diff(begin), 10))
    engine = rng.choice(["P0", "P1"], 30)
    shaken = pl.DataFrame({"engine": engine, "peer": "D0", "rank": "0", "begin": begin, "finish": begin + took})
    spent = pl.col("finish") - pl.col("begin")
    shaken = shaken.with_columns(before_ns=spent.cum_sum().over("engine") - spent)
    starts = rng.integers(0, 100_000, 400)
    ends = [None if end % 17 == 0 else int(end) for end in starts + rng.integers(0, 3_000, 400)]
    asked = pl.DataFrame({"mine": rng.choice(["P0", "P1", "P2"], 400), "its": "D0", "no": "0", "a": starts, "b": ends})
    found = measure_handshakes(asked, shaken, ("mine", "its", "no"), pl.col("a"), pl.col("b"))
    expected = [
        sum(
            max(min(row["finish"], b) - max(row["begin"], a), 0)
            for row in shaken.iter_rows(named=True)
            if row["engine"] == mine
        )
        if b is not None
        else 0
        for mine, _, _, a, b in asked.iter_rows()
    ]
    assert sum(expected) > 0
    assert found.to_list() == expected


def test_percentiles_are_those_of_polars() -> None:
    values = pl.Series(np.random.default_rng(7).integers(0, 10**9, 1_002)).append(pl.Series([None], dtype=pl.Int64))
    found = describe(values)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert abs(found[name] * 1e6 - values.quantile(q, "linear")) <= 1
    assert found["count"] == 1_002
    assert describe(pl.Series([], dtype=pl.Int64)) == {"count": 0}


def test_rows_outlive_the_result_that_they_lie_in(tmp_path) -> None:
    from exporters.clickhouse.database import open_database, parse_address

    database = open_database(parse_address(f"chdb:{tmp_path / 'db'}"), create=True)
    text = "SELECT number AS n, repeat(toString(number), 20) AS text FROM numbers(200000)"
    frame = pl.from_arrow(database.fetch(text))
    assert isinstance(frame, pl.DataFrame)
    for other in range(1, 6):  # what is let go of is written over
        database.fetch(text.replace("toString(number)", f"toString(number + {other})"))
        gc.collect()
    assert frame["text"].to_list() == [str(number) * 20 for number in range(200_000)]
    assert database.fetch("SELECT 1 AS one WHERE 0").num_rows == 0
    database.close()

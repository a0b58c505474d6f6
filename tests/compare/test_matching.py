"""Who is compared with whom."""

import numpy as np
import polars as pl
from synthetic import make_requests, make_run

from analysis.compare.comparison import compare_breakdowns, find_sources
from analysis.compare.matching import add_load, match_pairs, match_strata
from analysis.compare.words import list_notes


def test_attempts_of_a_key_are_paired_in_order():
    requests = make_requests(6, 1)
    a, b = (make_run(requests, seed).budgets.with_columns(request_key=pl.lit("again")) for seed in (1, 2))
    matched = match_pairs(
        a.with_columns(prompt_tokens=pl.lit(5)), b.sample(6, seed=1, shuffle=True).with_columns(prompt_tokens=pl.lit(5))
    )
    ttft_a, ttft_b = matched.pool("ttft")
    assert np.allclose(ttft_a, a["ttft"].to_numpy() / 1e6)
    assert np.allclose(ttft_b, b["ttft"].to_numpy() / 1e6)


def test_a_key_with_another_prompt_is_no_pair():
    requests = make_requests(10, 1)
    a, b = (make_run(requests, seed).budgets for seed in (1, 2))
    longer = pl.when(pl.col("request_key") == "req-00003").then(7).otherwise(pl.col("prompt_tokens"))
    matched = match_pairs(a, b.with_columns(prompt_tokens=longer).head(9))
    assert matched.strata[0].size == (8, 8)
    assert matched.left_out == (2, 1)


def test_load_is_that_of_arrivals_not_of_what_is_in_flight():
    """A run that is ten times slower has the same arrivals, so the same load."""
    requests = make_requests(200, 1)
    fast = make_run(requests, 1).budgets
    slow = fast.with_columns(ttft=pl.col("ttft") * 10)
    one, two = add_load(fast, slow)
    assert one["load"].to_list() == two["load"].to_list()
    assert set(one["load"]) == {"low", "middle", "high"}


def test_strata_without_partners_are_left_out():
    a, b = make_run(make_requests(60, 1), 1).budgets, make_run(make_requests(60, 2), 2).budgets
    matched = match_strata(a, b.filter(pl.col("prompt_tokens") == 200))
    assert all(stratum.name.startswith("<=256") for stratum in matched.strata)
    assert sum(matched.left_out) > 0
    assert match_strata(a.head(0), b).strata == ()


def test_runs_that_share_nothing_are_not_judged():
    a, b = make_requests(20, 1), make_requests(20, 2)
    a["prompt_tokens"], b["prompt_tokens"] = np.full(20, 200), np.full(20, 3000)
    comparison = compare_breakdowns(make_run(a, 1, seeded=None), make_run(b, 2, seeded=None))
    assert {verdict.word for verdict in comparison.verdicts} == {"too few"}
    assert any("none has requests of both runs" in note for note in list_notes(comparison))


def test_lost_requests_are_told():
    requests = make_requests(60, 1)
    comparison = compare_breakdowns(make_run(requests, 1), make_run(requests, 2, lost=15))
    (note,) = [note for note in list_notes(comparison) if note.startswith("Never finished")]
    assert "0 of 60 in run, 15 of 75 in run" in note
    assert "flatter the run that lost more" in note


def test_sources_of_ttft_are_named():
    budgets = make_run(make_requests(4, 1), 1).budgets
    assert find_sources(budgets) == "router"
    mixed = budgets.with_columns(ttft_source=pl.Series(["router", "engine", "router", "engine"]))
    assert find_sources(mixed) == "engine+router"

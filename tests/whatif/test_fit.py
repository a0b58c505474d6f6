"""Fits on planted costs: found again, through noise and outliers; a slowdown only where the data show one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from analysis.whatif.calibrate import LAB, choose_contention
from analysis.whatif.fit import Fit, fit_costs
from analysis.whatif.observations import Observations


def make_steps(slowdown, spread=1.0, count=60, noise=0.05, seed=3):
    source = np.random.default_rng(seed)
    columns = np.stack([np.ones(count), source.choice([500.0, 1000.0, 1500.0], count)], axis=1)
    overlap = 1 - spread * source.uniform(0, 1, count).round()
    seconds = columns @ np.array([0.01, 2e-4]) * (1 + slowdown * overlap) * source.lognormal(0, noise, count)
    seconds[::20] *= 3
    return columns, seconds, overlap


@pytest.mark.parametrize("slowdown", [0.5, 1.0, 2.0])
def test_costs_and_slowdown_are_found_through_outliers(slowdown):
    columns, seconds, overlap = make_steps(slowdown)
    fit = fit_costs(columns, seconds, overlap)
    assert fit.slowdown == pytest.approx(slowdown, rel=0.15)
    assert fit.costs @ [1, 1000] == pytest.approx(0.21, rel=0.08)


def test_no_slowdown_is_found_where_there_is_none():
    fit = fit_costs(*make_steps(0.0))
    assert fit.slowdown <= 0.1
    assert fit.costs @ [1, 1000] == pytest.approx(0.21, rel=0.08)


def test_an_engine_that_was_always_awake_tells_no_slowdown():
    assert fit_costs(*make_steps(1.0, spread=0.0)).slowdown is None


@pytest.mark.parametrize(
    ("slowdown", "waited", "expected", "origin"),
    [(1.4, 0.9, 1.4, "with and without"), (None, 0.9, 1.2, "without a core"), (None, 0.2, LAB.prefill, "assumed")],
)
def test_contention_is_measured_where_it_can_be(slowdown, waited, expected, origin):
    steps = pl.DataFrame({"overlap": [0.5, 1.0], "seconds": [1.0, 1.0]})
    observed = Observations(pl.DataFrame(), steps, steps, steps, {}, {"prefill": waited, "decode": 0.1})
    even, off = np.full(20, 1.01), np.linspace(1.2, 1.3, 20)
    fits = {"prefill": Fit(np.ones(1), slowdown, even), "decode": Fit(np.ones(1), 0.3, even)}
    usual = {role: Fit(np.ones(1), getattr(LAB, role), off) for role in fits}
    contention, source = choose_contention(observed, fits, usual, is_shared=True)
    assert contention.prefill == pytest.approx(expected)
    assert contention.decode == 0.3
    assert origin in source.origin
    assert choose_contention(observed, fits, usual, is_shared=False)[0].prefill == 0


def test_a_slowdown_that_explains_no_more_than_the_usual_one_is_not_taken():
    """As on 56 prompts of a real pair with a core each: the best fit said x1.35, chance alone."""
    columns, seconds, overlap = make_steps(LAB.prefill, noise=0.4)
    best, usual = fit_costs(columns, seconds, overlap), fit_costs(columns, seconds, overlap, LAB.prefill)
    assert best.slowdown != pytest.approx(LAB.prefill)
    steps = pl.DataFrame({"overlap": overlap, "seconds": seconds})
    observed = Observations(pl.DataFrame(), steps, steps, steps, {}, {})
    contention, source = choose_contention(
        observed, {"prefill": best, "decode": best}, {"prefill": usual, "decode": usual}, is_shared=True
    )
    assert (contention.prefill, contention.decode) == (LAB.prefill, LAB.decode)
    assert f"x{1 + best.slowdown:.2f} fits best, but 60 steps do not tell" in source.origin

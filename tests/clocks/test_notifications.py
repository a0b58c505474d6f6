"""A push's landing between hosts: D's notification bounds it within the doubt of the clocks, P's late polls do not."""

import polars as pl
import pytest

from analysis.clocks.notifications import place_notifications, widen_landings
from analysis.landing import estimate_landing

MS = 10**6
T0 = 1_790_000_000 * 10**9


def estimate(heard, doubt, *, after=10, done=180, posted=10):
    """A transfer posted at 10 ms, last seen in progress at `after`, done at `done`, notified at `heard` (ms)."""
    moments = {"post_end": posted, "landed_after": after, "landed_done": done, "notified_apart": heard}
    stamps = {name: [None if at is None else T0 + round(at * MS)] for name, at in moments.items()}
    frame = pl.DataFrame(stamps, dict.fromkeys(moments, pl.Int64)).with_columns(
        x_engine=pl.lit("P0"), x_peer=pl.lit("D0"), x_direction=pl.lit("WRITE"), bytes=pl.lit(1000),
        notified_at=pl.lit(None, pl.Int64), doubt_pd=pl.lit(round(doubt * MS)),
    )  # fmt: skip
    row = widen_landings(estimate_landing(place_notifications(frame))).row(0, named=True)
    times = [None if row[name] is None else (row[name] - T0) / MS for name in ("landed", "landed_lo", "landed_hi")]
    return *times, row["uncertainty_ns"] / MS if row["uncertainty_ns"] is not None else None


def test_notification_of_the_other_host_bounds_the_landing():
    landed, low, high, unsure = estimate(heard=14, doubt=3)
    assert (landed, low, high) == (12, 10, 17)
    assert unsure == 5


def test_own_poll_stays_the_bound_where_it_is_tighter():
    assert estimate(heard=14, doubt=3, done=12) == (11, 10, 12, 1)


def test_notification_before_a_poll_in_progress_is_as_unsure_as_the_clocks():
    landed, low, high, unsure = estimate(heard=18, doubt=3, after=20)
    assert landed == 20
    assert (low, high) == (15, 21)
    assert unsure == 5


def test_landing_inside_the_call_that_posts_is_charged_to_the_call():
    landed, low, _, unsure = estimate(heard=9, doubt=3, after=10, posted=10)
    assert (landed, low, unsure) == (10, 10, 2)


@pytest.mark.parametrize(("heard", "doubt"), [(None, 3), (14, 0), (14, -1e-6)])
def test_unheard_or_unrelated_leaves_the_polls(heard, doubt):
    assert estimate(heard, doubt) == (95, 10, 180, 85)

"""TPOT on real engines: what a decode step pays for transfers, charged in the right steps to the right request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from pairs import SETTLE_S, percentile

from analysis.interference import charge_victims
from analysis.source import open_session
from analysis.tpot_report import TpotReport, load_steps, report_tpot
from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

POST_MS = 150.0
# Long enough answers that the hand-overs of the other workload all fall into their decoding.
VICTIMS = Workload(requests=3, concurrency=3, input_lens=(48,), output_len=400, seed=41, id_prefix="victim")
CULPRITS = Workload(requests=4, concurrency=1, input_lens=(400,), output_len=3, seed=42, id_prefix="culprit")
QUIET = Workload(requests=3, concurrency=3, input_lens=(48,), output_len=120, seed=43, id_prefix="quiet")
LONG = Workload(requests=6, concurrency=2, input_lens=(64, 300), output_len=128, seed=44, id_prefix="long")


@dataclass
class Measured:
    """One pair's workloads and what the analysis says of them."""

    pair: Pair
    report: TpotReport
    steps: pl.DataFrame
    members: pl.DataFrame
    posts: pl.DataFrame

    def decode_steps(self, prefix: str) -> pl.DataFrame:
        """Return D's steps in which all requests of a workload decode (so: after the last hand-over of it)."""
        own = self.members.filter(pl.col("request_id").str.contains(f"-{prefix}-"), pl.col("kind") == 1)
        counts = own.group_by("batch", "row").len()
        whole = counts.filter(pl.col("len") == counts["len"].max()).select("batch", "row")
        return self.steps.join(whole, on=["batch", "row"], how="semi")


@pytest.fixture(scope="module")
def measured(shared_pair: Pair) -> Measured:
    pair = shared_pair
    pair.warm_up((48, 64, 300, 400))
    records = [*pair.run_workload(QUIET), *pair.run_workload(LONG)]
    pair.set_faults({"post": {"ms": POST_MS}})
    time.sleep(0.1)
    victims: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: victims.extend(pair.run_workload(VICTIMS)))
    sender.start()
    # The victims' own hand-overs are over when the others begin.
    time.sleep(2.0)
    culprits = pair.run_workload(CULPRITS)
    sender.join(timeout=120)
    pair.clear_faults()
    records += [*victims, *culprits]
    assert [record["error"] for record in records] == [None] * len(records)
    report = wait_for_report(pair, {record["request_id"] for record in records})
    with open_session([pair.out]) as session:
        steps, members, posts = load_steps(session)
    return Measured(pair, report, steps, members, posts)


def wait_for_report(pair: Pair, keys: set[str]) -> TpotReport:
    """Read the run until every token of these requests has its step."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        time.sleep(1.5)
        with open_session([pair.out]) as session:
            report = report_tpot(session)
        whole = report.requests.filter(pl.col("tokens") == pl.col("intervals") + 1)
        if keys <= set(whole["request_key"]):
            return report
        if time.monotonic() > deadline:
            known = report.requests.select("request_key", "tokens", "intervals").to_dicts()
            raise AssertionError(f"no whole budget for {sorted(keys - set(whole['request_key']))} in {known}")


def test_steps_meet_their_workers_half(measured: Measured, report: Callable[[str], None]) -> None:
    coverage = measured.report.coverage
    report(
        f"{measured.pair.mode}: {coverage['steps']} steps with work, {coverage['without_worker']} without worker half"
    )
    assert coverage["without_worker"] <= 0.01 * coverage["steps"]
    decoded = measured.steps.filter(pl.col("decoding") > 0, pl.col("w_ranks").is_not_null())
    assert decoded.filter((pl.col("w_begin") < pl.col("begin")) | (pl.col("w_finish") > pl.col("finish"))).is_empty()


def test_steady_decoding_pays_nothing_for_the_connector(measured: Measured, report: Callable[[str], None]) -> None:
    quiet = measured.decode_steps("quiet")
    share = float(quiet["connector"].sum()) / float(quiet["duration"].sum())
    report(
        f"{measured.pair.mode}: {quiet.height} steps with {QUIET.requests} decoding and no transfer: connector "
        f"{share:.2%} of the step ({quiet['connector'].mean() / 1e6:.3f} of {quiet['duration'].mean() / 1e6:.2f} ms)"
    )
    assert quiet.height > QUIET.output_len / 2
    assert share < 0.02


def test_a_slow_post_is_charged_to_victims_and_culprit(measured: Measured, report: Callable[[str], None]) -> None:
    charges = charge_victims(measured.steps, measured.posts)
    posts = charges.filter(pl.col("what") == "post", pl.col("culprit").str.contains("-culprit-"))
    decode = measured.steps.filter(pl.col("decoding") > 0)
    slow = decode.filter(pl.col("submit") > POST_MS * 1e6 / 2)
    if measured.pair.mode == "push":
        # Nothing is posted on D; P's writer thread waits instead, and nobody decodes there.
        report(f"push: {POST_MS:.0f} ms per post -> {slow.height} of {decode.height} decode steps on D submit slowly")
        assert posts.filter(pl.col("victims") > 0).is_empty()
        assert slow.is_empty()
        return
    hit = posts.filter(pl.col("victims") > 0)
    per_victim = [cost / 1e6 for cost in hit["cost_ns"]]
    expected = POST_MS * float(hit["victims"].sum())
    delay = float(hit["delay_ns"].sum()) / 1e6
    report(
        f"pull: {POST_MS:.0f} ms per post, {hit.height} hand-overs into {hit['victims'].max()} decoding requests -> "
        f"{delay:.1f} ms delay for {expected:.0f} ms injected; each {min(per_victim):.1f} to {max(per_victim):.1f} ms"
    )
    # Right culprit, once each; right step: it is slow by the post and no other step is.
    assert hit["culprit"].n_unique() == hit.height == CULPRITS.requests
    tolerance = max(0.1 * POST_MS, 5.0)
    assert all(abs(cost - POST_MS) <= tolerance for cost in per_victim)
    assert delay == pytest.approx(expected, rel=0.1)
    charged = charges.filter(pl.col("what") == "post", pl.col("culprit") != "")
    assert slow.join(charged, on=["engine", "life", "index"], how="anti").is_empty()
    slowed = decode.join(posts.select("engine", "life", "index"), on=["engine", "life", "index"], how="semi")
    assert slowed.filter(pl.col("duration") < POST_MS * 1e6).is_empty()
    causes = dict(measured.report.gaps.select("cause", "gaps").iter_rows())
    assert causes.get("post", 0) >= int(hit["victims"].sum())


def test_where_the_posts_ran(measured: Measured, report: Callable[[str], None]) -> None:
    places = measured.report.submissions
    pull = measured.pair.mode == "pull"
    engine = (measured.pair.decode if pull else measured.pair.prefill).id
    for row in places.iter_rows(named=True):
        cpu = measured.report.threads.filter(
            pl.col("engine") == row["engine"], pl.col("process") == "worker",
            pl.col("kind") == ("engine" if pull else "push_writer"),
        )  # fmt: skip
        assert cpu.height == 1
        report(
            f"{measured.pair.mode}: {row['posts']} {row['direction']} posts on {row['engine']}, {row['thread']} "
            f"({row['place']}): {row['post_ns'] / 1e6:.0f} ms; that thread's CPU {cpu['cpu_ns'][0] / 1e9:.2f} s in "
            f"{cpu['sampled_ns'][0] / 1e9:.0f} s"
        )
    found = set(places.select("engine", "thread", "place", "direction").iter_rows())
    expected = ("MainThread", "engine thread", "READ") if pull else ("nixl-push-writer", "other thread", "WRITE")
    assert found == {(engine, *expected)}
    kinds = set(measured.report.threads.filter(pl.col("process") == "worker")["kind"])
    assert {"engine", "kvlens", "nixl"} <= kinds
    assert measured.report.writer.is_empty() == pull


def test_the_budget_is_what_the_client_measured(measured: Measured, report: Callable[[str], None]) -> None:
    rows = measured.report.requests.filter(pl.col("request_key").str.starts_with("long-")).drop_nulls("residual_ns")
    assert rows.height == LONG.requests
    whole = rows.select("execution_ns", "connector_ns", "gap_ns", "preemption_ns").sum_horizontal()
    assert (whole - rows["tpot_ns"]).abs().max() < 1_000  # type: ignore[operator]
    excess = [
        abs(residual) - max(0.02 * client, 1e6)
        for residual, client in rows.select("residual_ns", "client_tpot_ns").iter_rows()
    ]
    residuals = [abs(value) / 1e6 for value in rows["residual_ns"]]
    report(
        f"{measured.pair.mode}: TPOT at the client {rows['client_tpot_ns'].mean() / 1e6:.2f} ms, |residual| p50 "
        f"{percentile(residuals, 0.5):.3f} ms, p99 {percentile(residuals, 0.99):.3f} ms; {rows['coalesced'].sum()} of "
        f"{rows['tokens'].sum()} tokens coalesced"
    )
    assert percentile(excess, 0.99) <= 0

"""A recorded conversation run on real engines (fixtures/reuse/turns; its conditions are in its manifest).

Six conversations of five turns, two at a time, retention 12 s, each fourth turn 14 s late; vLLM 0.32 with
kv_load_failure_policy fail, so that the router sends a late turn's prefill a second time.
"""

from collections import Counter
from pathlib import Path

import pytest

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.reuse.conversations import report_conversations
from analysis.reuse.decisions import report_decisions
from analysis.reuse.leases import report_leases
from analysis.source import open_session

RUNS = Path(__file__).parents[1] / "fixtures" / "reuse"


@pytest.fixture(scope="module")
def session():
    with open_session([RUNS / "turns"]) as opened:
        yield opened


def test_every_request_has_one_budget_that_sums(session):
    rows = render_document(break_down(session))["requests"]
    assert len(rows) == 30
    for row in rows:
        assert sum(row["segments"].values()) + row["residual_ms"] == pytest.approx(row["ttft_ms"])
        assert abs(row["residual_ms"]) < 1
        parts = row.get("readback_ms")
        assert (parts is not None) == ("readback" in row["segments"])
        if parts:
            assert sum(parts.values()) == pytest.approx(row["segments"]["readback"], abs=1e-5)


def test_decisions_are_what_the_router_knows_it_offered(session):
    offered = Counter(session.query("conversations")["offered"])
    report = report_decisions(session)
    reasons = dict(report.reasons.select("reason", "requests").iter_rows())
    assert offered == {"first_turn": 6, "offered": 18, "stale": 6}
    assert reasons == {"fetched": offered["offered"], "expired": offered["stale"], "no_remote_metadata": 6 + 6}
    assert report.repeats == offered["stale"]
    assert report.prefixes == {"unknown": 12, "yes": 24}
    assert report.curve.verdict == "kept"


def test_the_ledger_balances(session):
    report = report_leases(session)
    balance = {entry["engine"]: entry for entry in report.balance}
    assert balance["P0"]["balanced"]
    # The last turn's blocks: the decode engine was ended while it kept them and told of nothing.
    assert (balance["D0"]["open"], balance["D0"]["unheard"]) == (66, 1)
    assert (report.retention.recorded_s, report.retention.reads, report.retention.late) == (12, 18, 6)
    first_without_loss = report.retention.points.filter(report.retention.points["lost"] == 0)["retention_s"][0]
    assert first_without_loss < 12


def test_conversations_are_whole(session):
    report = report_conversations(session)
    assert (report.tasks.height, report.turns.height, report.alone) == (6, 30, 0)
    late = report.turns.filter(report.turns["turn"] == 3)
    assert set(late["reason"]) == {"expired"}
    assert late["gap_ns"].min() > 13e9
    assert set(late["reused"]) == {0}
    assert report.tasks["rest_ns"].abs().max() < 1e6

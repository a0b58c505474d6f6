"""The readback in the TTFT budget: charged once, its parts sum to it, what nobody saw stays in the residual."""

from itertools import pairwise

import pytest
from reuse_world import Turn, add_conversation, make_world, write
from span_builder import MS

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.render.table import render_table
from analysis.render.waterfall import list_bars, render_waterfall
from analysis.source import open_session

FIRST = Turn("no_remote_metadata", prompt=300)
PARTS = {"handshake": 6.0, "dispatch": 2.0, "post": 1.5, "wire": 20.0, "completion_lag": 4.0}


def drop(process, *names):
    process.spans = [span for span in process.spans if span["name"] not in names]


def break_world(world, path):
    with open_session([write(world, path / "run")]) as session:
        return break_down(session)


def test_readback_is_charged_and_its_parts_sum_to_it(tmp_path):
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(queue=5, queue_after=3, readback=PARTS)])
    breakdown = break_world(world, tmp_path)
    first, second = render_document(breakdown)["requests"]
    assert "readback" not in first["segments"]
    assert "readback_ms" not in first
    assert first["segments"]["prefill_queue"] == pytest.approx(4)
    assert second["segments"]["readback"] == pytest.approx(33.5)
    assert second["segments"]["prefill_queue"] == pytest.approx(8)
    assert second["segments"]["prefill_compute"] == pytest.approx(30)
    assert second["readback_ms"] == pytest.approx(PARTS, abs=0.002)
    assert sum(second["readback_ms"].values()) == pytest.approx(second["segments"]["readback"], abs=1e-6)
    assert second["readback"]["outcome"] == "ok"
    assert second["readback"]["tokens"] == 300
    assert second["residual_ms"] == pytest.approx(0, abs=1e-6)
    rows = breakdown.budgets.to_dicts()
    bars = [(name, begin / MS, end / MS) for name, begin, end, *_ in list_bars(rows[1])]
    names = [name for name, *_ in bars]
    assert names[2:9] == ["prefill_queue", "readback handshake", "readback dispatch", "readback post",
                          "readback wire", "readback completion_lag", "prefill_queue"]  # fmt: skip
    assert all(end == pytest.approx(begin) for (_, _, end), (_, begin, _) in pairwise(bars))
    assert render_waterfall(rows[1])
    assert render_table(breakdown, 3)


@pytest.mark.parametrize(("lost", "left"), [("post", 2 + 1.5), ("wire", 20 + 4)])
def test_lost_worker_spans_leave_an_unresolved_part(tmp_path, lost, left):
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(readback=PARTS)])
    drop(world.prefill, lost)
    row = render_document(break_world(world, tmp_path))["requests"][1]
    assert row["segments"]["readback"] == pytest.approx(33.5)
    assert sum(row["readback_ms"].values()) == pytest.approx(33.5)
    assert row["readback_ms"]["unresolved"] == pytest.approx(left, abs=0.01)
    assert row["residual_ms"] == pytest.approx(0, abs=1e-6)


def test_a_decision_stands_in_for_a_lost_wait(tmp_path):
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(readback=PARTS)])
    drop(world.prefill, "prefill.remote_wait")
    row = render_document(break_world(world, tmp_path))["requests"][1]
    assert row["segments"]["readback"] == pytest.approx(33.5)


def test_a_queue_with_an_unbounded_readback_stays_in_the_residual(tmp_path):
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(readback=PARTS)])
    drop(world.prefill, "prefill.remote_wait", "decision")
    row = render_document(break_world(world, tmp_path))["requests"][1]
    assert "readback" not in row["segments"]
    assert "prefill_queue" not in row["segments"]
    assert row["residual_ms"] == pytest.approx(33.5 + 4 + 2)


def test_a_failed_fetch_is_charged_without_parts(tmp_path):
    world = make_world()
    add_conversation(
        world, "c", 0, [FIRST, Turn("fetch_failed_recomputed", readback={"dispatch": 9}, outcome="failed")]
    )
    row = render_document(break_world(world, tmp_path))["requests"][1]
    assert row["segments"]["readback"] == pytest.approx(9)
    assert row["readback_ms"] == {"handshake": 0, "unresolved": pytest.approx(9)}


def test_stock_prefill_leaves_it_in_the_residual(tmp_path):
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(readback=PARTS)])
    world.prefill.spans = []
    row = render_document(break_world(world, tmp_path))["requests"][1]
    assert row["missing"] == ["prefill"]
    assert "readback" not in row["segments"]
    assert row["residual_ms"] > 33.5

"""The readback in the TTFT budget: charged once, its parts sum to it, what nobody saw stays in the residual."""

from itertools import pairwise

import polars as pl
import pytest
from reuse_world import Turn, add_conversation, make_world, write
from span_builder import MS, trace_of

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.render.table import render_table
from analysis.render.waterfall import list_bars, render_waterfall
from analysis.reuse.retries import fold_retries
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


def strand(world, outcome, finish):
    """P's second turn ends in its readback: it was never scheduled, and nothing went to D."""
    key = "c-t1"
    drop_later = {"prefill.queue", "prefill.compute", "post", "wire"}
    world.prefill.spans = [
        span for span in world.prefill.spans if span["traceId"] != trace_of(key) or span["name"] not in drop_later
    ]
    world.decode.spans = [span for span in world.decode.spans if span["traceId"] != trace_of(key)]
    world.router.spans = [span for span in world.router.spans if span["traceId"] != trace_of(key)]
    ends = {"prefill.remote_wait": ("outcome", outcome), "prefill": ("finish_reason", finish)}
    for span in world.prefill.spans:
        name, value = ends.get(span["name"], ("", ""))
        if span["traceId"] == trace_of(key) and name:
            span["attributes"] = [kv for kv in span["attributes"] if kv["key"] != f"kv_transfer.{name}"]
            span["attributes"].append({"key": f"kv_transfer.{name}", "value": {"stringValue": value}})


@pytest.mark.parametrize(
    ("outcome", "finish", "waits_for"),
    [("aborted", "finished_aborted", "readback"), ("unknown", "unknown", "readback"),
     ("failed", "finished_error", "readback"), ("failed", "finished_aborted", "prefill_queue"),
     ("ok", "finished_aborted", "prefill_queue")],
)  # fmt: skip
def test_a_request_that_never_came_out_of_its_readback_waits_for_that(tmp_path, outcome, finish, waits_for):
    """One whose fetch failed or succeeded was left in the queue by what then ended it."""
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn(readback=PARTS)])
    strand(world, outcome, finish)
    breakdown = break_world(world, tmp_path)
    (row,) = render_document(breakdown)["unfinished"]
    assert (row["request_id"], row["waiting_for"]) == ("c-t1", waits_for)
    assert breakdown.summary["unfinished"]["waiting_for"] == {waits_for: 1}


def add_failed_attempt(world, key, before_ms, length_ms=30):
    """P declined the fetch and failed the request; the router sent it again."""
    served = next(s for s in world.prefill.spans if s["name"] == "prefill" and s["traceId"] == trace_of(key))
    start = int(served["startTimeUnixNano"]) - world.prefill.stamp(0) - round(before_ms * MS)
    common = {"trace": trace_of(key), "request_id": f"cmpl-{key}-0-ffffffff", "request_key": key}
    world.emit(world.prefill, "decision", start, start + MS, **common, reason="expired", decision="fetch",
               peer_engine_id="D0", peer_request_id="elsewhere", fetch_tokens=300, seconds_to_expiry=-1.0)  # fmt: skip
    world.emit(world.prefill, "prefill", start, start + length_ms * MS, **common, prompt_tokens=400,
               finish_reason="finished_error")  # fmt: skip


def test_an_attempt_that_was_sent_again_is_the_same_request(tmp_path):
    """Its time is readback, and the router's request keeps one budget."""
    world = make_world()
    add_conversation(world, "c", 0, [FIRST, Turn("no_remote_metadata"), Turn("no_remote_metadata")])
    for span in world.router.spans:  # the router sent the attempt that failed 50 ms earlier
        if span["traceId"] == trace_of("c-t1") and span["name"] != "router.decode":
            span["startTimeUnixNano"] = str(int(span["startTimeUnixNano"]) - 50 * MS)
            for kv in span["attributes"]:
                if kv["key"] == "kv_transfer.client_sent_ns":
                    kv["value"] = {"intValue": str(int(kv["value"]["intValue"]) - 50 * MS)}
    add_failed_attempt(world, "c-t1", before_ms=40)
    breakdown = break_world(world, tmp_path)
    rows = render_document(breakdown)["requests"]
    assert len(rows) == 3
    second = rows[1]
    assert second["segments"]["readback"] == pytest.approx(40)
    assert second["readback_ms"]["unresolved"] == pytest.approx(40)
    assert second["segments"]["prefill_ingress"] == pytest.approx(11)
    assert second["residual_ms"] == pytest.approx(0, abs=1e-6)
    bars = list_bars(breakdown.budgets.to_dicts()[1])
    assert [name for name, *_ in bars][:4] == ["route", "prefill_ingress", "readback", "prefill_queue"]
    assert all(end == begin for (_, _, end, *_), (_, begin, *_) in pairwise(bars))


def test_a_client_that_uses_an_id_again_is_no_retry():
    engines = pl.DataFrame({
        "p_trace": ["t"] * 3, "p_key": ["k"] * 3, "p_id": ["a", "b", "c"], "d_id": [None, None, "d"],
        "p_finish": ["finished_error", "finished_error", "finished_length_capped"], "p_start": [10, 20, 30],
    })  # fmt: skip
    routers = pl.DataFrame({"r_trace": ["t"] * 3, "r_key": ["k"] * 3})
    assert fold_retries(engines, routers).height == 3
    folded = fold_retries(engines, routers[:1]).to_dicts()
    assert [(row["p_id"], row["tries"], row["tried_id"], row["tried_start"]) for row in folded] == [("c", 2, "a", 10)]
    assert fold_retries(engines, routers[:0]).height == 3

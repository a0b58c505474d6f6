"""What is not there: stock peers, killed engines, foreign and broken data. Said, counted, never invented."""

import json

import pytest
from span_builder import EPOCH, MS, Request, World, add_request, encode_line, pull_times, push_times

from analysis.breakdown import break_down
from analysis.errors import KvlensError
from analysis.source import open_session

HANDOVER = (
    "handoff_dispatch",
    "decode_admission",
    "dispatch",
    "post",
    "wire",
    "completion_lag",
    "decode_queue",
    "first_decode",
)


def drop_decode(times):
    """Forget what only D knew (it goes on serving)."""
    for name in ("d_alloc", "told", "d_sched", "d_first"):
        setattr(times, name, None)
    return times


def test_pull_with_stock_decode_leaves_its_share_in_the_residual(analyse):
    world = World("pull")
    times, truth = pull_times(0, prefill_compute=80, wire=20)
    add_request(world, Request("r"), times, decode=False)
    document = analyse(world)
    (row,) = document["requests"]
    assert row["missing"] == ["decode"]
    assert set(row["segments"]) == {"route", "prefill_ingress", "prefill_queue", "prefill_compute"}
    assert row["residual_ms"] == pytest.approx(sum(truth[name] for name in (*HANDOVER, "delivery")) / MS)
    assert document["summary"]["missing"] == {"decode": 1}
    assert document["unfinished"] == []


def test_pull_with_stock_prefill(analyse):
    world = World("pull")
    times, truth = pull_times(0, prefill_compute=80)
    add_request(world, Request("r"), times, prefill=False)
    (row,) = analyse(world)["requests"]
    assert row["missing"] == ["prefill"]
    unknown = ("prefill_ingress", "prefill_queue", "prefill_compute", "handoff_dispatch")
    assert row["residual_ms"] == pytest.approx(sum(truth[name] for name in unknown) / MS)
    assert row["segments"]["decode_admission"] == pytest.approx(1)
    assert row["segments"]["wire"] == pytest.approx(1, abs=0.01)


def test_push_with_stock_decode_keeps_the_wire_and_not_what_decode_did(analyse):
    world = World("push")
    times, _ = push_times(0, prefill_compute=80, registration=200, wire=25)
    add_request(world, Request("r"), times, decode=False)
    (row,) = analyse(world)["requests"]
    assert row["missing"] == ["decode"]
    assert row["segments"]["wire"] == pytest.approx(25, abs=0.01)
    assert "pairing" not in row["segments"]
    late = (times.seen - times.p_end) / MS
    after = (times.first_byte - times.landed) / MS
    assert row["residual_ms"] == pytest.approx(late + after, abs=0.01)


def test_push_with_stock_prefill(analyse):
    world = World("push")
    times, _ = push_times(0, prefill_compute=80)
    add_request(world, Request("r"), times, prefill=False)
    (row,) = analyse(world)["requests"]
    assert row["missing"] == ["prefill"]
    assert set(row["segments"]) == {"route", "decode_queue", "first_decode", "delivery"}


@pytest.mark.parametrize(("mode", "make"), [("pull", pull_times), ("push", push_times)])
def test_without_router_the_engines_bound_the_ttft(analyse, mode, make):
    world = World(mode)
    times, truth = make(0, prefill_compute=80, d_ingress=0.25)
    add_request(world, Request("r"), times, router=False)
    (row,) = analyse(world)["requests"]
    assert row["ttft_source"] == "engine"
    start = min(times.p_start, times.d_start) if mode == "push" else times.p_start
    assert row["ttft_ms"] == pytest.approx((times.d_first - start) / MS)
    assert row["residual_ms"] == pytest.approx(0, abs=1e-9)
    assert not {"route", "delivery"} & set(row["segments"])
    if mode == "push":  # D was reached 0.75 ms before P
        assert row["segments"]["prefill_ingress"] == pytest.approx(0.75)
    assert row["segments"]["prefill_compute"] == pytest.approx(truth["prefill_compute"] / MS)


# Milestone that never came -> what the request waits for. A queue span is emitted when it ends, so P that died with a
# request in its queue never told of its arrival.
KILLED = {
    "pull": [
        ("p_sched", "prefill_ingress"), ("p_end", "prefill_compute"), ("d_alloc", "handoff_dispatch"),
        ("post", "dispatch"), ("landed_before", "wire"), ("told", "completion_lag"), ("d_sched", "decode_queue"),
        ("d_first", "first_decode"),
    ],
    "push": [
        ("p_end", "prefill_compute"), ("seen", "registration"), ("d_alloc", "pairing"), ("post", "dispatch"),
        ("landed_before", "wire"), ("d_first", "first_decode"),
    ],
}  # fmt: skip
ORDER = ["p_sched", "p_end", "d_alloc", "seen", "post", "landed_before", "told", "d_sched", "d_first"]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_unfinished_requests_say_what_they_waited_for(analyse, mode):
    world = World(mode)
    make = pull_times if mode == "pull" else push_times
    for number, (milestone, _) in enumerate(KILLED[mode]):
        times, _ = make(number * 500 * MS)
        kill_before(times, mode, milestone)
        add_request(world, Request(milestone), times, dead_decode=True)
    alive, _ = make(20_000 * MS)
    add_request(world, Request("alive"), alive)
    document = analyse(world)
    assert [row["request_id"] for row in document["requests"]] == ["alive"]
    assert {row["request_id"]: row["waiting_for"] for row in document["unfinished"]} == dict(KILLED[mode])
    assert not any(row["first_token"] for row in document["unfinished"])
    assert document["summary"]["unfinished"]["count"] == len(KILLED[mode])
    assert sum(document["summary"]["unfinished"]["waiting_for"].values()) == len(KILLED[mode])


def kill_before(times, mode, milestone):
    """The engine that would have seen the milestone died just before."""
    late = ORDER[2:] if (mode, milestone) == ("push", "d_alloc") else ORDER[ORDER.index(milestone) :]
    for name in (*late, "first_byte", "end"):
        setattr(times, name, None)
    if times.p_end is None and mode == "pull":
        times.d_sent = None


def test_decode_killed_after_the_first_token(analyse):
    world = World("pull")
    times, _ = pull_times(0)
    times.end = None
    add_request(world, Request("r"), times, dead_decode=True)
    document = analyse(world)
    (row,) = document["requests"]
    assert not row["finished"]
    assert row["tpot_ms"] is None
    assert document["unfinished"][0]["waiting_for"] == "decode"
    assert document["unfinished"][0]["first_token"]


def test_half_a_line_is_skipped_and_counted(tmp_path):
    world = World("pull")
    for number in range(10):
        times, _ = pull_times(number * 100 * MS)
        add_request(world, Request(f"r{number}"), times)
    directory = world.write(tmp_path)
    path = next(directory.glob("vllm-decode*"))
    text = path.read_text()
    path.write_text(text[: len(text) - 200])
    (tmp_path / "empty.otlp.jsonl").touch()
    with open_session([tmp_path]) as session:
        result = break_down(session)
    assert result.summary["data"]["bad_lines"] == 1
    assert 0 < result.budgets.height <= 10


def test_foreign_spans_and_impossible_clocks_are_counted_and_skipped(analyse, tmp_path):
    world = World("pull")
    times, truth = pull_times(0)
    add_request(world, Request("r"), times)
    bad = [(-EPOCH, -EPOCH + MS), (4_200_000_000 * 10**9 - EPOCH,) * 2, (times.p_end, times.p_start)]
    for begin, end in bad:
        world.emit(world.prefill, "prefill.compute", begin, end, request_id=Request("r").p_id, request_key="r")
    traces = tmp_path / "run" / "traces"
    traces.mkdir(parents=True)
    foreign = [
        {"name": "GET /", "startTimeUnixNano": str(EPOCH), "endTimeUnixNano": str(EPOCH + 5), "traceId": "0" * 32}
    ] * 4
    (traces / "other.jsonl").write_text(encode_line({"service.name": "shop"}, foreign, scope="http") + "\n")
    document = analyse(world)
    assert document["summary"]["data"]["foreign_spans"] == 4
    assert document["summary"]["data"]["impossible_spans"] == 3
    (row,) = document["requests"]
    assert row["segments"]["prefill_compute"] == pytest.approx(truth["prefill_compute"] / MS)


def open_and_break(path):
    with open_session([path]) as session:
        return break_down(session)


def test_nothing_to_read_names_the_remedy(tmp_path):
    with pytest.raises(KvlensError, match="no such run") as error:
        open_and_break(tmp_path / "nowhere")
    assert error.value.remedy
    with pytest.raises(KvlensError, match="no span files"):
        open_and_break(tmp_path)
    (tmp_path / "a.otlp.jsonl").touch()
    with pytest.raises(KvlensError, match="no spans"):
        open_and_break(tmp_path)
    (tmp_path / "a.otlp.jsonl").write_text('{"resourceSpans": [{"reso')
    with pytest.raises(KvlensError, match="1 of them damaged"):
        open_and_break(tmp_path)
    (tmp_path / "a.otlp.jsonl").write_text(
        encode_line({}, [{"name": "x", "startTimeUnixNano": str(EPOCH)}], "http") + "\n"
    )
    with pytest.raises(KvlensError, match="comes from kvlens") as error:
        open_and_break(tmp_path)
    assert "instrumented_connectors" in error.value.remedy


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_one_side_without_router_is_refused(tmp_path, side):
    world = World("pull")
    times, _ = pull_times(0)
    add_request(world, Request("r"), times, router=False, prefill=side == "prefill", decode=side == "decode")
    world.write(tmp_path)
    with pytest.raises(KvlensError, match=f"spans of the {side} side only") as error:
        open_and_break(tmp_path)
    assert error.value.exit_code == 1


def test_only_warm_ups_is_refused(tmp_path):
    world = World("pull")
    times, _ = pull_times(0)
    add_request(world, Request("warmup-1"), times)
    world.write(tmp_path)
    with pytest.raises(KvlensError, match="warm-up requests only"):
        open_and_break(tmp_path)


def test_broken_manifest_names_the_file(tmp_path):
    world = World("pull")
    times, _ = pull_times(0)
    add_request(world, Request("r"), times)
    world.write(tmp_path / "traces")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(KvlensError, match=r"manifest\.json"):
        open_and_break(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps([1]))
    with pytest.raises(KvlensError, match="not a JSON object"):
        open_and_break(tmp_path)

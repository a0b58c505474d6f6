"""TPOT budgets, culprits and the client's gaps on steps with known truth, through the real builder and exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from step_world import MS, UNIX, StepWorld

from analysis.cli import main
from analysis.source import open_session
from analysis.token_times import join_tokens, read_tokens
from analysis.tpot_report import TpotReport, report_tpot

EXECUTION, GAP, POLL, POST = 10.0, 1.0, 0.5, 40.0


def build_world(thread: str = "MainThread", poster: str = "MainThread", direction: str = "READ") -> StepWorld:
    """Two requests decode; a third one's transfer is posted in step 7, by `poster`."""
    world = StepWorld(thread=thread)
    world.arrive("cmpl-a-0-00000000", 100)
    world.arrive("cmpl-b-0-00000000", 50)
    a, b = "cmpl-a-0-00000000", "cmpl-b-0-00000000"
    world.run({a: 100}, EXECUTION)
    world.run({a: 1, b: 50}, EXECUTION, gap=GAP)
    for _ in range(4):
        world.run({a: 1, b: 1}, EXECUTION, gap=GAP, poll=POLL)
    if poster == thread:
        world.run({a: 1, b: 1}, EXECUTION, gap=GAP, posts=[("c", POST), ("d", 5.0)], poll=POLL)
    else:
        begin = world.now
        world.run({a: 1, b: 1}, EXECUTION, gap=GAP, poll=POLL)
        world.span("post", begin + 2, begin + 2 + POST, "c", thread=poster, direction=direction)
    for _ in range(3):
        world.run({a: 1, b: 1}, EXECUTION, gap=GAP, poll=POLL)
    return world


def report_of(world: StepWorld, folder: Path) -> TpotReport:
    with open_session([world.write(folder)]) as session:
        return report_tpot(session)


def row_of(report: TpotReport, key: str) -> dict[str, Any]:
    (row,) = report.requests.filter(pl.col("request_key") == key).to_dicts()
    return row


def test_the_parts_sum_to_the_engines_time(tmp_path: Path) -> None:
    row = row_of(report_of(build_world(), tmp_path), "b")
    assert row["intervals"] == 8
    assert row["execution_ns"] == pytest.approx(EXECUTION * MS)
    assert row["gap_ns"] == pytest.approx(GAP * MS)
    assert row["submit_ns"] * 8 == pytest.approx(45 * MS)
    assert row["poll_ns"] == pytest.approx(POLL * MS)
    assert row["preemption_ns"] == 0
    parts = sum(row[f"{name}_ns"] for name in ("execution", "connector", "gap", "preemption"))
    assert parts == pytest.approx(row["tpot_ns"])
    assert row["batch_mean"] == 2


def test_steps_without_the_request_are_preemption(tmp_path: Path) -> None:
    world = StepWorld()
    world.arrive("a", 1)
    world.arrive("b", 1)
    world.run({"a": 1, "b": 1}, EXECUTION)
    world.run({"a": 1, "b": 1}, EXECUTION)
    world.run({"a": 1}, EXECUTION, preempted=1)
    world.span("decode", 0, world.now, "a")
    world.run({"a": 1}, EXECUTION)
    world.run({"a": 1, "b": 1}, EXECUTION)
    row = row_of(report_of(world, tmp_path), "b")
    assert row["preemption_ns"] * row["intervals"] == pytest.approx(2 * EXECUTION * MS)
    assert row["tpot_ns"] * row["intervals"] == pytest.approx(4 * EXECUTION * MS)


def test_posts_are_charged_to_victims_and_culprits(tmp_path: Path) -> None:
    report = report_of(build_world(), tmp_path)
    charged = {row["culprit"]: row for row in report.culprits.iter_rows(named=True)}
    assert charged["c"]["delay_ns"] == pytest.approx(2 * POST * MS)
    assert charged["d"]["delay_ns"] == pytest.approx(2 * 5 * MS)
    assert [charged[name]["steps"] for name in "cd"] == [1, 1]
    assert charged["c"]["direction"] == "READ"
    causes = {row["cause"]: row["gaps"] for row in report.gaps.iter_rows(named=True)}
    assert causes["post"] == 2


@pytest.mark.parametrize("direction", ["READ", "WRITE"])
def test_place_and_direction_are_what_the_post_says(direction: str, tmp_path: Path) -> None:
    """A connector of any mode that posts from another thread delays nobody on the engine's thread."""
    report = report_of(build_world(poster="some-reader-thread", direction=direction), tmp_path)
    assert report.culprits.filter(pl.col("delay_ns") > 0).is_empty()
    (place,) = report.submissions.to_dicts()
    assert (place["thread"], place["place"], place["direction"]) == ("some-reader-thread", "other thread", direction)
    assert place["post_ns"] == POST * MS


def test_polls_are_charged_to_the_transfers_in_flight(tmp_path: Path) -> None:
    world = StepWorld()
    world.arrive("a", 1)
    world.run({"a": 1}, EXECUTION)
    begin = world.now
    for _ in range(4):
        world.run({"a": 1}, EXECUTION, poll=3.0)
    # c is in flight during the second and third poll, d during the third.
    world.span("wire", begin + 14, begin + 38, "c")
    world.span("wire", begin + 27, begin + 38, "d")
    report = report_of(world, tmp_path)
    delays = dict(report.culprits.select("culprit", "poll_delay_ns").iter_rows())
    assert delays == {"c": pytest.approx(4.5 * MS), "d": pytest.approx(1.5 * MS)}
    assert report.interference is not None
    assert report.interference["unattributed_delay_ms"] == pytest.approx(6.0)


def write_client(folder: Path, stamps: dict[str, list[float]]) -> None:
    lines = [
        json.dumps({"request_id": key, "status": "ok", "send_unix_ns": UNIX,
                    "token_unix_ns": [UNIX + round(at * MS) for at in times]})
        for key, times in stamps.items()
    ]  # fmt: skip
    (folder / "client.jsonl").write_text("\n".join([*lines, '{"cut off']) + "\n")


def test_the_residual_is_over_the_whole_request(tmp_path: Path) -> None:
    world = build_world()
    last = world.now
    world.write(tmp_path)
    first = 2 * EXECUTION + GAP
    # Nine tokens; three of them came together, which moves single gaps and not their sum.
    step = (last - first) / 8
    times = [first + step * i for i in range(9)]
    times[4] = times[5] = times[6]
    write_client(tmp_path, {"b": times, "a": [0.0, 5.0]})
    with open_session([tmp_path]) as session:
        report = report_tpot(session)
    row = row_of(report, "b")
    assert row["coalesced"] == 2
    assert row["residual_ns"] == pytest.approx(0, abs=10)
    # The client saw fewer tokens of a than the engine made: nothing is compared.
    assert row_of(report, "a")["residual_ns"] is None


def test_attempts_of_one_id_meet_in_order() -> None:
    tpot = pl.DataFrame({"request_key": ["x", "x"], "first_end": [50, 10], "intervals": [2, 1], "tpot_ns": [4.0, 3.0]})
    tokens = pl.DataFrame({
        "request_id": ["x", "x"], "send_unix_ns": [5, 40], "tokens": [2, 3], "first_ns": [10, 50], "last_ns": [14, 59],
        "coalesced": [0, 0], "longest_gap_ns": [4, 5],
    })  # fmt: skip
    joined = join_tokens(tpot, tokens)
    assert joined["client_tpot_ns"].to_list() == [4.5, 4.0]
    assert joined["residual_ns"].to_list() == [0.5, 1.0]
    assert read_tokens(None).is_empty()


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    build_world().write(tmp_path)
    done = CliRunner().invoke(main, ["tpot", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["schema"] == 1
    assert {row["request_key"] for row in document["requests"]} == {"a", "b"}
    assert document["culprits"][0]["culprit"] == "c"
    assert document["interference"]["delay_ms"] == pytest.approx(90.0)
    assert document["interference"]["delay_per_hand_over_ms"] == pytest.approx(45.0)
    table = CliRunner().invoke(main, ["tpot", str(tmp_path)])
    assert table.exit_code == 0, table.output
    assert "TPOT budget: 2 requests" in table.output


def test_a_run_without_step_records_says_so(tmp_path: Path) -> None:
    world = StepWorld()
    world.span("decode", 0, 10, "a")
    world.write(tmp_path)
    done = CliRunner().invoke(main, ["tpot", str(tmp_path)])
    assert done.exit_code == 1
    assert "no step records" in done.output
    assert "KVLENS_DETAIL" in done.output

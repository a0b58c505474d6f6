"""`kvlens conversations` on runs whose turns are known."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from reuse_world import Turn, add_conversation, make_world, write

from analysis.commands.conversations import conversations
from analysis.errors import KvlensError
from analysis.reuse.conversations import report_conversations
from analysis.source import open_session

FIRST = Turn("no_remote_metadata", prompt=300, compute=90, gap=0)
SECOND = Turn(prompt=420, remote=310, gap=800, compute=33)
THIRD = Turn(prompt=520, remote=420, gap=2000, compute=30)


def build(path, *, reuse=True, given=True, router=True, **manifest):
    world = make_world()
    for number in range(3):
        turns = [FIRST, SECOND, THIRD]
        if not reuse:
            turns = [replace(turn, reason="no_remote_metadata", compute=turn.prompt * 0.3) for turn in turns]
        turns = [replace(turn, given=given, router=router) for turn in turns]
        add_conversation(world, f"c{number}", number * 10_000 * 1_000_000, turns)
    return write(world, path, **manifest)


def document_of(*arguments):
    done = CliRunner().invoke(conversations, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("conversations")
    policy = {"prefix_caching": False, "block_size": 16}
    return build(root / "on", cache_policy=policy), build(root / "off", reuse=False, cache_policy=policy)


def test_turns_and_tasks(runs):
    document = document_of(runs[0])
    assert document["reuse"] == "readback"
    assert [task["conversation"] for task in document["conversations"]] == ["c0", "c1", "c2"]
    task = document["conversations"][0]
    first, second, third = task["turns"]
    assert (first["gap_s"], second["gap_s"], third["gap_s"]) == (None, pytest.approx(0.8), pytest.approx(2))
    assert [turn["context_tokens"] for turn in task["turns"]] == [300, 420, 520]
    assert [turn["reused_tokens"] for turn in task["turns"]] == [0, 310, 420]
    assert [turn["computed_tokens"] for turn in task["turns"]] == [300, 110, 100]
    assert second["segments"]["readback"] == pytest.approx(16)
    assert second["segments"]["prefill_compute"] == pytest.approx(33)
    assert second["offered"] == "offered"
    for turn in task["turns"]:
        assert sum(turn["segments"].values()) + turn["residual_ms"] == pytest.approx(turn["ttft_ms"])
    parts = sum(task[f"{name}_s"] for name in ("gaps", "first_token", "generation", "rest"))
    assert parts == pytest.approx(task["completion_s"])
    assert task["gaps_s"] == pytest.approx(2.8)
    assert task["rest_s"] == pytest.approx(0, abs=1e-6)
    assert task["engine_s"] > 0.153
    growth = {row["turn"]: row for row in document["growth"]}
    assert growth[1]["requests"] == 3
    assert growth[2]["reused_tokens"] == 420


def test_links_are_derived_where_the_router_names_none(tmp_path):
    document = document_of(build(tmp_path / "run", given=False))
    assert [task["link"] for task in document["conversations"]] == ["derived"] * 3
    assert [[turn["turn"] for turn in task["turns"]] for task in document["conversations"]] == [[0, 1, 2]] * 3
    assert document["conversations"][0]["conversation"] == "from c0-t0"


def test_without_a_router_too(tmp_path):
    document = document_of(build(tmp_path / "run", router=False))
    assert [len(task["turns"]) for task in document["conversations"]] == [3, 3, 3]
    assert document["conversations"][0]["turns"][1]["segments"]["readback"] == pytest.approx(16)


def test_runs_side_by_side(runs):
    document = document_of(runs[0], "--against", runs[1])
    (other,) = document["against"]
    assert other["reuse"] == "no reuse"
    (difference,) = document["differences"]
    assert (difference["run"], difference["base"]) == ("on", "off")
    later = difference["later_turns_ttft"]
    assert later["pairs"] == 6
    assert difference["first_turns_ttft"]["difference_ms"] == pytest.approx(0)
    # 16 + 2 ms of readback and queue against (420 * 0.3 - 33) and (520 * 0.3 - 30) ms of computing.
    assert later["difference_ms"] == pytest.approx(18 - (126 - 33 + 156 - 30) / 2, abs=0.1)
    done = CliRunner().invoke(conversations, [str(runs[0]), "--against", str(runs[1])])
    assert done.exit_code == 0, done.output
    for text in ("prefix caching", "no reuse", "readback", "faster", "6 pairs"):
        assert text in done.output


def test_tables(runs):
    done = CliRunner().invoke(conversations, [str(runs[0])])
    assert done.exit_code == 0, done.output
    for text in ("Turn over turn", "Conversation c0", "total = gaps"):
        assert text in done.output
    done = CliRunner().invoke(conversations, [str(runs[0]), "--conversation", "nobody"])
    assert done.exit_code == 1


def test_a_run_without_conversations_says_so(tmp_path):
    world = make_world()
    add_conversation(world, "a", 0, [replace(FIRST, given=False)])
    write(world, tmp_path)
    with open_session([tmp_path]) as session, pytest.raises(KvlensError, match="no conversations"):
        report_conversations(session)

"""`kvlens decisions` on a run whose every decision is known."""

import json

import pytest
from click.testing import CliRunner
from reuse_world import Turn, add_conversation, make_world, write
from span_builder import MS, Request, World, add_request, push_times

from analysis.commands.decisions import decisions
from analysis.errors import KvlensError
from analysis.reuse.decisions import report_decisions
from analysis.source import open_session

ESTIMATES = {
    "fetch_estimate_ns": 15 * MS, "fetch_estimate_low_ns": 12 * MS, "fetch_estimate_high_ns": 18 * MS,
    "fetch_samples": 20, "recompute_estimate_ns": 40 * MS, "recompute_estimate_low_ns": 35 * MS,
    "recompute_estimate_high_ns": 45 * MS, "recompute_samples": 20, "prefix_match": "yes", "prefix_blocks": 18,
}  # fmt: skip
WRONG = ESTIMATES | {"prefix_match": "no", "prefix_mismatch_block": 3}


def build(path):
    world = make_world()
    first = Turn("no_remote_metadata", prompt=300)
    add_conversation(world, "a", 0, [
        first,
        Turn(decision=ESTIMATES | {"regret_ns": (16 - 40) * MS, "seconds_to_expiry": 5.5}),
        Turn("below_threshold", remote=40, decision=ESTIMATES | {"recompute_ns": 41 * MS, "regret_ns": 26 * MS}),
        Turn("expired", decision=ESTIMATES | {"seconds_to_expiry": -2.5}),
    ])  # fmt: skip
    add_conversation(world, "b", 5000 * MS, [first, Turn(decision=WRONG), Turn("local_cache_covers", local=390)])
    return write(world, path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return build(tmp_path_factory.mktemp("decisions") / "run")


def test_report_and_document(run):
    done = CliRunner().invoke(decisions, [str(run), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    counts = {row["reason"]: row["requests"] for row in document["reasons"]}
    assert counts == {
        "fetched": 2,
        "no_remote_metadata": 2,
        "below_threshold": 1,
        "expired": 1,
        "local_cache_covers": 1,
    }
    assert document["prefixes"] == {"no": 1, "not offered": 3, "yes": 3}
    (wrong,) = document["mismatches"]
    assert (wrong["key"], wrong["prefix_mismatch_block"], wrong["got_wrong_kv"]) == ("b-t1", 3, True)
    assert document["costs"]["fetch"]["took_ms"]["p50"] == pytest.approx(16)
    assert document["estimates"]["fetch"]["error_ms"]["p50"] == pytest.approx(1)
    assert document["estimates"]["fetch"]["covered"] == 1
    assert document["regret"]["lost_ms"] == pytest.approx(26)
    assert document["regret"]["worst"][0]["request"] == "a-t2"
    (expired,) = [row for row in document["reasons"] if row["reason"] == "expired"]
    assert expired["past_expiry_s"] == 2.5
    curve = document["threshold"]["curve"]
    assert [(row["low"], row["high"]) for row in curve] == [(0, 40), (41, 300), (301, None)]
    # Fetching the one below the threshold too would have taken 15 instead of 41 ms, over 7 requests.
    assert curve[0]["change_ms"] == pytest.approx((15 - 41) / 7)
    assert curve[1]["is_recorded"]
    # Never fetching: two fetches (16 ms) become 40 ms of computing, the expired one saves its wait.
    assert curve[2]["change_ms"] == pytest.approx((2 * (40 - 16) - 16) / 7)
    assert [row["fetched_share"] for row in curve] == pytest.approx([4 / 7, 3 / 7, 0])


def test_table_says_it_in_words(run):
    done = CliRunner().invoke(decisions, [str(run)])
    assert done.exit_code == 0, done.output
    for word in ("below_threshold", "wrong KV was fetched", "Threshold curve", "recorded", "26.0 ms lost"):
        assert word in done.output


def test_a_push_run_has_none(tmp_path):
    world = World("push")
    add_request(world, Request("r"), push_times(0)[0])
    world.write(tmp_path / "traces")
    with open_session([tmp_path]) as session, pytest.raises(KvlensError, match="push has none"):
        report_decisions(session)


def test_a_run_of_older_spans_has_none(tmp_path):
    world = make_world()
    add_conversation(world, "a", 0, [Turn("no_remote_metadata")])
    world.prefill.spans = [span for span in world.prefill.spans if span["name"] != "decision"]
    write(world, tmp_path)
    with open_session([tmp_path]) as session, pytest.raises(KvlensError, match="no decision spans") as caught:
        report_decisions(session)
    assert "bidirectional_kv_xfer" in caught.value.remedy


@pytest.mark.slow
def test_a_prediction_is_held_against_a_run_with_that_threshold(tmp_path):
    """The second run computes what the first one fetched; its prompts take what the first one's estimates say."""
    first = Turn("no_remote_metadata", prompt=300)
    paths = []
    for name, threshold, turn in (
        ("fetching", 64, Turn(decision=ESTIMATES, compute=10)),
        ("computing", 512, Turn("below_threshold", decision=ESTIMATES | {"recompute_ns": 40 * MS}, compute=50)),
    ):
        world = make_world()
        for number in range(4):
            add_conversation(world, f"c{number}", number * 4000 * MS, [first, turn, turn])
        for span in world.prefill.spans:
            for kv in span["attributes"]:
                if kv["key"] == "kv_transfer.threshold":
                    kv["value"] = {"intValue": str(threshold)}
        paths.append(str(write(world, tmp_path / name)))
    done = CliRunner().invoke(decisions, [paths[0], "--check", paths[1], "--json"])
    assert done.exit_code == 0, done.output
    (check,) = json.loads(done.output)["checks"]
    assert check["threshold"] == 512
    # Two of three turns: 40 ms of computing instead of 16 ms of fetching, and 2 ms less of queue after it.
    assert check["predicted"]["change_ms"] == pytest.approx(2 / 3 * (40 - 16))
    assert check["measured"]["difference_ms"] == pytest.approx(2 / 3 * (40 - 16 - 2))
    assert (check["predicted"]["fetched_share"], check["fetched_share"]) == (0, 0)
    assert check["is_inside"]
    done = CliRunner().invoke(decisions, [paths[0], "--check", paths[1]])
    assert "within both uncertainties" in done.output

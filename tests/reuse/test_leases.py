"""`kvlens leases` on runs whose every held block is known."""

import json

import polars as pl
import pytest
from click.testing import CliRunner
from reuse_world import BYTES_PER_BLOCK, S, Turn, add_conversation, add_lease, make_world, write
from span_builder import EPOCH, MS

from analysis.commands.leases import leases
from analysis.errors import KvlensError
from analysis.reuse.leases import report_leases
from analysis.reuse.ledger import add_unheard, classify, mark_declined
from analysis.reuse.retention import draw_retention
from analysis.reuse.usage import compare_usage
from analysis.source import open_session

FIRST = Turn("no_remote_metadata", prompt=300)
TTL = 60 * S


def build(path):
    """One conversation whose second turn reads after 20 s, one that never comes back, one that comes 10 s too late."""
    world = make_world()
    (a0, *_), (a1, *_) = back = add_conversation(world, "a", 0, [FIRST, Turn(gap=20_000)])
    ((b0, _, b_end),) = add_conversation(world, "b", 1 * S, [FIRST])
    late = {"seconds_to_expiry": -10.0}
    (c0, _, c_end), _ = add_conversation(world, "c", 2 * S, [FIRST, Turn("expired", gap=70_000, decision=late)])
    ended = back[0][2]
    read = back[1][1] + 6 * MS
    add_lease(world, "decode", a0, ended, read + 16 * MS, reason="awaiting_next_turn", outcome="read", ttl_ns=TTL)
    add_lease(world, "decode", b0, b_end, b_end + TTL, reason="awaiting_next_turn", outcome="expired", ttl_ns=TTL)
    add_lease(world, "decode", c0, c_end, c_end + TTL, reason="awaiting_next_turn", outcome="expired", ttl_ns=TTL)
    add_lease(world, "decode", a1, 40 * S, 50 * S, reason="awaiting_next_turn", outcome="unknown", ttl_ns=TTL)
    for request, begin in ((a0, 100 * MS), (b0, 1100 * MS), (a1, 30 * S)):
        add_lease(world, "prefill", request, begin, begin + 2 * S, reason="finished_awaiting_transfer", outcome="read",
                  heartbeats=2)  # fmt: skip
    add_lease(world, "prefill", c0, 3 * S, 33 * S, reason="finished_awaiting_transfer", outcome="aborted", blocks=4)
    for process in (world.prefill, world.decode):
        for span in process.spans:
            if span["name"] in ("prefill", "decode"):
                span["attributes"].append({"key": "kv_transfer.block_ns", "value": {"intValue": str(5 * S)}})
    return write(world, path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = build(tmp_path_factory.mktemp("leases") / "run")
    changes = [{"schema": 2, "engine": "D0", "unix_ns": EPOCH + at * S, "blocks": 20, "total_blocks": 100}
               for at in range(-1, 200)]  # fmt: skip
    sampled = {"schema": 1, "engine": "D0", "unix_ns": EPOCH + 300 * S, "blocks": 99}
    (path / "cache_usage.jsonl").write_text("\n".join(map(json.dumps, [*changes, sampled])) + '\n{"engine": "D0", "un')
    return path


@pytest.fixture(scope="module")
def document(run):
    done = CliRunner().invoke(leases, [str(run), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_ledger_sums_what_was_held(document):
    rows = {(row["engine"], row["reason"]): row for row in document["ledger"]}
    kept = rows["D0", "awaiting_next_turn"]
    assert (kept["leases"], kept["blocks"]) == (5, 40)
    assert kept["used_block_s"] == pytest.approx(10 * 20.022, abs=0.1)
    assert kept["wasted_block_s"] == pytest.approx(2 * 600)
    assert kept["open_block_s"] == pytest.approx(100)
    assert kept["wasted_gb_s"] == pytest.approx(1200 * BYTES_PER_BLOCK / 1e9)
    assert kept["age_p50_s"] == pytest.approx(20, abs=0.05)
    assert {name: kept[f"outcome_{name}"] for name in ("read", "expired", "unknown")} == {
        "read": 1,
        "expired": 2,
        "unknown": 1,
    }
    waiting = rows["P0", "finished_awaiting_transfer"]
    assert waiting["used_block_s"] == pytest.approx(60)
    assert waiting["wasted_block_s"] == pytest.approx(120)
    assert waiting["heartbeats"] == 6
    assert rows["D0", "running"]["block_s"] == pytest.approx(25)


def test_balance_names_what_is_still_held_and_what_was_never_heard_of(document):
    balance = {entry["engine"]: entry for entry in document["balance"]}
    assert (balance["D0"]["taken"], balance["D0"]["released"], balance["D0"]["balanced"]) == (40, 30, False)
    assert [(held["key"], held["outcome"]) for held in balance["D0"]["held"]] == [
        ("a-t1", "unknown"),
        ("c-t1", "unheard"),
    ]
    assert [held["key"] for held in balance["P0"]["held"]] == ["c-t1"]
    assert [balance[engine]["unheard"] for engine in ("P0", "D0")] == [1, 1]


def test_leases_of_a_killed_engine_are_worked_out_from_its_requests():
    row = {
        "engine": "D0", "id": "x", "key": "x", "role": "decode", "mode": "bidirectional", "reason": "running",
        "blocks": 3, "bytes": None, "begin": 0, "finish": 4 * S, "outcome": "", "ttl_ns": None, "block_ns": 8 * S,
        "finish_reason": "finished_length_capped", "has_peer": 1,
    }  # fmt: skip
    engines = pl.DataFrame({"engine": ["D0"], "mode": ["bidirectional"], "last_heard": [10 * S]})
    schema = {"bytes": pl.Int64, "ttl_ns": pl.Int64}
    aborted = row | {"id": "y", "finish_reason": "finished_aborted"}
    alone = row | {"id": "w", "has_peer": 0}  # came without a prefill engine's parameters: nothing is kept
    found = add_unheard(pl.DataFrame([row, aborted, alone], schema_overrides=schema), engines).to_dicts()
    (lease,) = found[3:]
    assert (lease["reason"], lease["outcome"], lease["blocks"]) == ("awaiting_next_turn", "unheard", 3)
    assert (lease["begin"], lease["finish"], lease["block_ns"]) == (4 * S, 10 * S, 18 * S)
    # Told of one lease with a time to live of 2 s, the other one can't have been held longer.
    told = row | {"id": "z", "reason": "awaiting_next_turn", "outcome": "read", "ttl_ns": 2 * S}
    found = add_unheard(pl.DataFrame([row, told], schema_overrides=schema), engines).to_dicts()
    assert found[2]["block_ns"] == 6 * S


def test_cache_usage_is_integrated_over_the_same_window(document):
    (entry,) = document["cache_usage"]
    assert entry["window_s"] == pytest.approx(200)
    assert entry["measured_block_s"] == pytest.approx(4000)
    held = 10 * 20.022 + 1200 + 100 + 25
    assert entry["ledger_block_s"] == pytest.approx(held, rel=0.001)
    assert entry["difference"] == pytest.approx((held - 4000) / 4000, abs=0.001)
    assert document["bad_usage_lines"] == 2  # the other schema's and the half line


def test_what_is_held_between_two_changes_counts():
    """10 blocks from 1 to 3 s, 4 from 5 to 9 s."""
    own = pl.DataFrame({"engine": "D0", "begin": [1 * S, 5 * S], "finish": [3 * S, 9 * S], "held_ns": [2 * S, 4 * S],
                        "block_ns": [20 * S, 16 * S]})  # fmt: skip
    usage = pl.DataFrame({"engine": "D0", "unix_ns": [0, S, 3 * S, 5 * S, 9 * S], "blocks": [0, 10, 0, 4, 0]})
    (entry,) = compare_usage(own, usage)
    assert (entry["measured_block_s"], entry["ledger_block_s"], entry["difference"]) == (36, 36, 0)
    (entry,) = compare_usage(own, usage.head(4))
    assert (entry["measured_block_s"], entry["ledger_block_s"]) == (20, 20)


def test_retention_curve(document):
    retention = document["retention"]
    assert (retention["recorded_s"], retention["margin_s"]) == (60, 5)
    assert (retention["reads"], retention["expired"], retention["late"]) == (1, 2, 1)
    curve = {row["retention_s"]: row for row in retention["curve"]}
    assert curve[0]["lost"] == 1
    assert curve[0]["block_s"] == 0
    assert curve[60]["is_recorded"]
    assert curve[60]["lost"] == 0
    assert curve[60]["block_s"] == pytest.approx(10 * (20.022 + 60 + 60 + 10), rel=0.001)
    needed = min(at for at, row in curve.items() if not row["lost"])
    assert needed == 26  # 20.008 s and the margin of 5 s, in two digits
    won = min(at for at, row in curve.items() if row["won"])
    assert won == 75
    assert not curve[won]["is_known"]
    assert curve[120]["block_s"] == pytest.approx(10 * (20.022 + 120 + 70 + 10), rel=0.001)
    assert retention["limits"]


def test_table_says_it(run):
    done = CliRunner().invoke(leases, [str(run)])
    assert done.exit_code == 0, done.output
    for text in (
        "NOT balanced",
        "open at the end: a-t1",
        "1 of them were never told of",
        "2 lines of cache_usage.jsonl skipped",
        "Retention curve",
        "at most",
    ):
        assert text in done.output


def test_a_run_without_leases_says_so(tmp_path):
    world = make_world()
    add_conversation(world, "a", 0, [FIRST])
    write(world, tmp_path)
    with open_session([tmp_path]) as session, pytest.raises(KvlensError, match="no lease spans"):
        report_leases(session)


def test_reads_inside_the_margin_mean_that_the_reader_was_not_told_of_the_expiry():
    row = {
        "engine": "D0", "id": "x", "reason": "awaiting_next_turn", "is_warmup": False, "fate": "used",
        "outcome": "read", "ttl_ns": 10 * S, "held_ns": 8 * S, "age_ns": 8 * S, "blocks": 2, "bytes": 100,
        "block_ns": 16 * S,
    }  # fmt: skip
    none = pl.DataFrame(
        schema={"reason": pl.String, "seconds_to_expiry": pl.Float64, "peer": pl.String, "peer_id": pl.String}
    )
    curve = draw_retention(pl.DataFrame([row]), none)
    assert curve.margin_s == 0
    assert {point["retention_s"]: point["lost"] for point in curve.points.to_dicts()} == {
        0: 1,
        8: 0,
        10: 0,
        20: 0,
        40: 0,
    }


def test_blocks_that_the_next_turn_did_not_read_are_wasted_though_the_holder_was_notified():
    leases = pl.DataFrame({"engine": ["D0"] * 3, "id": ["a", "b", "c"], "reason": ["awaiting_next_turn"] * 3,
                           "outcome": ["read", "read", "expired"]})  # fmt: skip
    decisions = pl.DataFrame({
        "peer": ["D0"] * 3, "peer_id": ["a", "b", "c"], "decision": ["fetch", "recompute", "fetch"],
        "reason": ["fetched", "below_threshold", "expired"],
    })  # fmt: skip
    assert mark_declined(leases, decisions)["outcome"].to_list() == ["read", "declined", "expired"]


@pytest.mark.parametrize(
    ("reason", "outcome", "read", "fate"),
    [("awaiting_next_turn", "read", None, "used"), ("awaiting_next_turn", "released", 5, "used"),
     ("awaiting_next_turn", "released", None, "unclear"), ("awaiting_next_turn", "declined", None, "wasted"),
     ("reserved_awaiting_read", "received", None, "used"), ("reserved_awaiting_read", "released", None, "unclear"),
     ("aborted_awaiting_receive", "released", None, "wasted"), ("finished_awaiting_transfer", "expired", 5, "wasted"),
     ("finished_awaiting_transfer", "unheard", None, "open"), ("running", "", None, "running")],
)  # fmt: skip
def test_fates(reason, outcome, read, fate):
    row = {"reason": reason, "outcome": outcome, "read_begin": read, "same_clock": 1, "is_warmup": 0, "begin": 0,
           "finish": 9, "blocks": 1, "bytes": 1, "block_ns": 9}  # fmt: skip
    assert classify(pl.DataFrame([row], schema_overrides={"read_begin": pl.Int64}))["fate"].to_list() == [fate]

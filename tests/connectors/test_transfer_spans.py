import msgspec
from helpers import ANCHOR, MS, Sink, feed, make_transfers

from instrumented_connectors.compat import PUSH_REGISTRATION_PREFIX
from instrumented_connectors.events import (
    DONE,
    FAILURE,
    HANDSHAKE,
    LOAD,
    NOTIFIED,
    POSTED,
    PREP,
    RESULTS,
    SENT,
    TELEMETRY,
)
from instrumented_connectors.identity import derive_span_id, derive_trace_id

P_ID, D_ID = "cmpl-r-0-aaaaaaaa", "cmpl-r-0-bbbbbbbb"
REGISTRATION = PUSH_REGISTRATION_PREFIX + msgspec.msgpack.encode(
    {"request_id": D_ID, "decode_engine_id": "D0", "remote_engine_id": "P0"}
)
NONE: frozenset[str] = frozenset()


def test_a_read_from_load_to_report() -> None:
    sink = Sink()
    feed(
        make_transfers(sink, "D0"),
        (LOAD, 0, [(D_ID, "P0", P_ID, True)], (), None, True),
        (PREP, 2, 3 * MS, 7, "READ", 128, f"{P_ID}:1".encode(), D_ID, "MainThread", True),
        (POSTED, 3, 5 * MS, 7, "MainThread", True),
        (DONE, 20, 7, 12 * MS, 3, "DONE"),
        (TELEMETRY, 20, 7, 1800, 14000, 4096, 128),
        (RESULTS, 21, (D_ID,), (), NONE),
    )
    assert sink.phases() == [("post", 2, 5), ("wire", 5, 20), ("completion", 20, 21)]
    trace, root = derive_trace_id("r"), derive_span_id("D0", D_ID)
    post, wire, completion = sink.spans
    assert {key: post[key] for key in ("trace", "parent", "direction", "descriptors", "thread", "prep_ns", "rank")} == {
        "trace": trace, "parent": root, "direction": "READ", "descriptors": 128, "thread": "MainThread",
        "prep_ns": MS, "rank": 0,
    }  # fmt: skip
    assert (post["peer_engine_id"], post["peer_request_id"], post["outcome"]) == ("P0", P_ID, "ok")
    assert (wire["landed_after_ns"], wire["landed_before_ns"]) == (ANCHOR + 12 * MS, ANCHOR + 20 * MS)
    assert (wire["bytes"], wire["nixl_xfer_us"], wire["nixl_post_us"], wire["polls"]) == (4096, 14000, 1800, 3)
    assert (completion["parent"], completion["outcome"]) == (root, "ok")


def test_never_seen_in_progress_is_bounded_by_the_post() -> None:
    sink = Sink()
    feed(
        make_transfers(sink, "D0"),
        (LOAD, 0, [(D_ID, "P0", P_ID, True)], (), None, True),
        (PREP, 2, 3 * MS, 7, "READ", 1, f"{P_ID}:1".encode(), None, "MainThread", True),
        (POSTED, 3, 5 * MS, 7, "MainThread", True),
        (DONE, 9, 7, 0, 1, "DONE"),
        (TELEMETRY, 9, 7, None, None, None, None),
    )
    wire = sink.named("wire")[0]
    assert (wire["landed_after_ns"], wire["landed_before_ns"]) == (ANCHOR + 5 * MS, ANCHOR + 9 * MS)
    assert "bytes" not in wire
    # Without a probe the request follows from the notification's text.
    assert wire["parent"] == derive_span_id("D0", D_ID)


def test_several_readers_of_one_source_need_the_probe() -> None:
    sink = Sink()
    children = [f"{index}_{D_ID}" for index in range(2)]
    transfers = make_transfers(sink, "D0")
    feed(transfers, (LOAD, 0, [(child, "P0", P_ID, True) for child in children], (), None, True))
    for handle, child in enumerate(children):
        feed(
            transfers,
            (PREP, 1, 2 * MS, handle, "READ", 1, f"{P_ID}:1".encode(), child, "MainThread", True),
            (POSTED, 2, 3 * MS, handle, "MainThread", True),
        )
    assert [post["parent"] for post in sink.named("post")] == [derive_span_id("D0", child) for child in children]
    assert len({post["span"] for post in sink.named("post")}) == 2


def push_events(registered: float, finished: float) -> list[tuple[object, ...]]:
    start = max(registered, finished) + 1
    events = [(NOTIFIED, registered, [REGISTRATION], "writer"), (LOAD, finished, [], (P_ID,), None, False)]
    events.sort(key=lambda event: event[1])
    return [
        *events,
        (PREP, start, round((start + 1) * MS), 9, "WRITE", 4, f"{D_ID}:1".encode(), P_ID, "writer", True),
        (POSTED, start + 1, round((start + 2) * MS), 9, "writer", True),
        (DONE, start + 5, 9, 0, 1, "DONE"),
        (TELEMETRY, start + 5, 9, 1, 2, 64, 4),
        (RESULTS, start + 6, (), (P_ID,), NONE),
    ]


def test_pairing_names_who_was_late() -> None:
    sink = Sink()
    feed(make_transfers(sink, "P0"), *push_events(registered=3, finished=10))
    pairing = sink.named("pairing")[0]
    assert (pairing["start"], pairing["end"], pairing["late_side"], pairing["late_ns"]) == (3, 10, "prefill", 7 * MS)
    assert (pairing["registration_seen_ns"], pairing["blocks_ready_ns"]) == (ANCHOR + 3 * MS, ANCHOR + 10 * MS)
    assert (pairing["peer_request_id"], pairing["peer_engine_id"], pairing["outcome"]) == (D_ID, "D0", "paired")

    late = Sink()
    feed(make_transfers(late, "P0"), *push_events(registered=12, finished=10))
    assert (late.named("pairing")[0]["late_side"], late.named("pairing")[0]["late_ns"]) == ("decode", 2 * MS)
    assert late.named("wire")[0]["peer_engine_id"] == "D0"


def test_a_write_finds_its_request_without_a_probe() -> None:
    sink = Sink()
    recorded = push_events(3, 10)
    recorded[2] = (*recorded[2][:7], None, *recorded[2][8:])
    feed(make_transfers(sink, "P0"), *recorded)
    assert sink.named("post")[0]["parent"] == derive_span_id("P0", P_ID)


def test_why_a_lease_ended() -> None:
    sink = Sink()
    transfers = make_transfers(sink, "P0")
    feed(transfers, *push_events(3, 10), (NOTIFIED, 30, [b"HB:other,cmpl-x-0-11111111"], "writer"))
    feed(transfers, (RESULTS, 60, (), ("cmpl-x-0-11111111",), NONE))
    feed(transfers, (NOTIFIED, 70, [b"cmpl-y-0-22222222:1"], "writer"), (RESULTS, 71, (), ("cmpl-y-0-22222222",), NONE))
    assert transfers._causes == {
        P_ID: ("sent", 0, 0), "cmpl-x-0-11111111": ("expired", 1, ANCHOR + 30 * MS),
        "cmpl-y-0-22222222": ("read", 0, 0),
    }  # fmt: skip


def test_blocks_that_no_decoder_asked_for_are_unpaired() -> None:
    sink = Sink()
    feed(make_transfers(sink, "P0"), (LOAD, 1, [], (P_ID,), None, False), (RESULTS, 31, (), (P_ID,), NONE))
    pairing = sink.named("pairing")[0]
    assert (pairing["outcome"], pairing["late_side"], pairing["error"]) == ("unpaired", "decode", True)


def test_the_decode_side_of_a_push() -> None:
    sink = Sink()
    feed(
        make_transfers(sink, "D0"),
        (LOAD, 0, [(D_ID, "P0", "whatever the router said", True)], (), None, False),
        (SENT, 1, 2 * MS, REGISTRATION, "writer", True),
        (NOTIFIED, 20, [f"{D_ID}:1".encode()], "writer"),
        (RESULTS, 22, (D_ID,), (), NONE),
    )
    assert sink.phases() == [("registration.send", 1, 2), ("notification", 20, 20), ("completion", 20, 22)]
    assert {span["trace"] for span in sink.spans} == {derive_trace_id("r")}


def test_failures_and_handshakes() -> None:
    sink = Sink()
    feed(
        make_transfers(sink, "D0"),
        (HANDSHAKE, 0, 8 * MS, "P0", "compatibility_hash_mismatch", False),
        (FAILURE, 9, "handshake_failed", D_ID, "RuntimeError", "P0"),
        (FAILURE, 9, "handshake_setup_failed", None, "RuntimeError", "P0"),
        (LOAD, 10, [(D_ID, "P0", P_ID, True)], (), None, True),
        (RESULTS, 11, (D_ID,), (), frozenset({D_ID})),
    )
    shake, failure, anonymous, completion = sink.spans
    assert (shake["outcome"], shake["reason"], shake["error"]) == ("error", "compatibility_hash_mismatch", True)
    assert (failure["failure_type"], failure["error_type"], failure["parent"]) == (
        "handshake_failed", "RuntimeError", derive_span_id("D0", D_ID),
    )  # fmt: skip
    assert anonymous["parent"] is None
    assert (completion["outcome"], completion["error"]) == ("failed", True)


def test_a_failed_post_leaves_no_transfer_behind() -> None:
    sink = Sink()
    transfers = make_transfers(sink, "P0")
    feed(transfers, *push_events(3, 10)[:3], (POSTED, 12, 13 * MS, 9, "writer", False))
    post = sink.named("post")[0]
    assert (post["outcome"], post["error"], post["peer_request_id"]) == ("error", True, D_ID)
    assert not transfers._transfers


def test_tables_are_bounded() -> None:
    sink = Sink()
    transfers = make_transfers(sink, "P0", limit=5)
    for number in range(50):
        feed(transfers, (NOTIFIED, number, [f"cmpl-{number}-0-aaaaaaaa:1".encode()], "writer"))
        feed(transfers, (LOAD, number, [(f"r{number}", "P", f"p{number}", True)], (f"f{number}",), None, True))
    known = transfers._known
    assert max(len(table) for table in vars(known).values()) <= 5
    assert transfers.evicted > 0


def test_garbage_messages_are_harmless() -> None:
    sink = Sink()
    messages = [b"", b"\xff\xfe", b"HB:", PUSH_REGISTRATION_PREFIX + b"\xc1", PUSH_REGISTRATION_PREFIX + b"\x01"]
    feed(make_transfers(sink, "P0"), (NOTIFIED, 1, messages, "writer"))
    assert {span["name"] for span in sink.spans} <= {"notification"}

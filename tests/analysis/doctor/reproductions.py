"""One run for every rule: healthy requests, and the one thing that the rule is about. Ground truth by construction."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from span_builder import MS, Process, Request, Times, World, add_request, pull_times, push_times

S = 1000 * MS
COUNT = 20
HEALTHY = {"prefill_compute": 80.0, "wire": 8.0, "first_decode": 12.0}

Build = Callable[[Path], None]
REPRODUCTIONS: dict[str, Build] = {}


def reproduces(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        REPRODUCTIONS[name] = build
        return build

    return register


def common(request: Request, side: str) -> dict:
    ids = {"p": request.p_id, "d": request.d_id}
    return {"trace": request.trace_id, "request_id": ids[side], "request_key": request.key}


def lease(world: World, request: Request, start: int, end: int, outcome: str, **more) -> None:
    world.emit(world.prefill, "lease", start, end, **common(request, "p"), blocks=16, outcome=outcome, **more)


def add_healthy(
    world: World, number: int, *, key: str = "ok", bytes: int = 8 << 20, **durations
) -> tuple[Request, Times]:
    """One request whose every segment is small, with its lease."""
    make = push_times if world.mode == "push" else pull_times
    times, _ = make(number * 300 * MS, **HEALTHY | durations)
    request = Request(f"{key}{number}", bytes=bytes)
    add_request(world, request, times)
    lease(world, request, times.p_end, times.landed + MS, "sent" if world.mode == "push" else "read", heartbeats=0)
    return request, times


def make_world(mode: str, count: int = COUNT, ranks: int = 1, **durations) -> World:
    world = World(mode, ranks=ranks)
    world.handshake(world.worker, world.decode if mode == "push" else world.prefill, -50 * MS, -20 * MS)
    for number in range(count):
        add_healthy(world, number, **durations)
    return world


def finish(world: World, path: Path, **manifest) -> None:
    world.write(path / "traces")
    engines = [
        {"id": world.prefill.engine, "role": "prefill", "instrumented": True},
        {"id": world.decode.engine, "role": "decode", "instrumented": True},
    ]
    (path / "manifest.json").write_text(
        json.dumps({"engines": engines, "backend": "UCX", "mode": world.mode} | manifest)
    )


def healthy(mode: str, ranks: int = 1) -> Build:
    return lambda path: finish(make_world(mode, ranks=ranks), path)


def healthy_readbacks(path: Path) -> None:
    """Fetches that pay, one that came late, one that was not worth it, prompts that continue what D holds."""
    world = make_world("pull")
    add_decisions(
        world, [*["fetched"] * 40, "below_threshold", "expired", "no_remote_metadata"], fetch_ns=16 * MS,
        fetch_estimate_ns=15 * MS, recompute_estimate_ns=60 * MS, fetch_samples=30, recompute_samples=30,
        regret_ns=-44 * MS, seconds_to_expiry=lambda number: -3.0 if number == 41 else 100.0,
    )  # fmt: skip
    finish(world, path)


HEALTHY_RUNS: dict[str, Build] = {
    "healthy push": healthy("push"), "healthy pull": healthy("pull"), "healthy push, 4 ranks": healthy("push", 4),
    "healthy readbacks": healthy_readbacks,
}  # fmt: skip


def reproduce_segment(name: str, mode: str, **durations: float) -> None:
    @reproduces(name)
    def build(path: Path) -> None:
        finish(make_world(mode, **durations), path)


reproduce_segment("completion-lag", "pull", completion_lag=170)
reproduce_segment("slow-dispatch", "push", dispatch=90)
reproduce_segment("slow-router", "pull", handoff_dispatch=200)
reproduce_segment("decode-admission", "pull", decode_admission=150)
reproduce_segment("slow-registration", "push", registration=250)
reproduce_segment("decode-queue", "pull", decode_queue=120)
reproduce_segment("slow-delivery", "push", delivery=150)
reproduce_segment("slow-ingress", "pull", prefill_ingress=150)
reproduce_segment("slow-routing", "push", route=150)
reproduce_segment("prefill-saturated", "pull", prefill_queue=140)
reproduce_segment("slow-post", "push", post=60)


@reproduces("handshake-on-path")
def cold_peers(path: Path) -> None:
    world = make_world("pull", count=0)
    for number in range(COUNT):
        _, times = add_healthy(world, number, dispatch=120)
        world.handshake(world.decode, world.prefill, times.d_alloc + MS, times.post - MS)
    finish(world, path)


@reproduces("legs-in-sequence")
def router_in_sequence(path: Path) -> None:
    world = World("push")
    for number in range(COUNT):
        times, _ = push_times(number * 300 * MS, **HEALTHY | {"d_ingress": 150})
        times = replace(times, d_sent=times.p_end + 5 * MS)
        request = Request(f"late{number}", bytes=8 << 20)
        add_request(world, request, times)
        lease(world, request, times.p_end, times.landed, "sent", heartbeats=0)
    finish(world, path)


@reproduces("late-decode-leg")
def slow_decode_leg(path: Path) -> None:
    finish(make_world("push", d_ingress=160), path)


@reproduces("slow-direction")
def two_directions(path: Path) -> None:
    world = make_world("pull")
    back = Request("back", bytes=8 << 20)
    for number in range(COUNT):
        start = number * 300 * MS + 250 * MS
        shared = {"trace": back.trace_id, "request_key": back.key, "rank": 0, "direction": "READ", "bytes": back.bytes,
                  "descriptors": 8, "peer_engine_id": "D0", "outcome": "ok"}  # fmt: skip
        world.emit(world.prefill, "wire", start, start + 80 * MS, **shared, request_id=f"back{number}", polls=9,
                   landed_after_ns=("at", start + 79 * MS), landed_before_ns=("at", start + 80 * MS))  # fmt: skip
    finish(world, path)


@reproduces("slow-peer")
def one_slow_pair(path: Path) -> None:
    world = make_world("pull")
    decoders = [Process("vllm-decode", f"D{n}", 10 + n, "pull") for n in (1, 2)]
    for place, process in enumerate(decoders):
        for number in range(COUNT):
            start, took = number * 300 * MS, (8 * MS, 60 * MS)[place]
            polled, landed = start + took * 9 // 10, start + took
            world.emit(process, "wire", start, landed, request_id=f"x{place}-{number}", rank=0, direction="READ",
                       bytes=8 << 20, descriptors=8, peer_engine_id="P0", outcome="ok", polls=2,
                       landed_after_ns=("at", polled), landed_before_ns=("at", landed))  # fmt: skip
    finish(world, path)
    for process in decoders:
        world.decode = process
        world.router.spans, world.prefill.spans = [], []
        world.write(path / "traces")


@reproduces("tcp-fallback")
def not_the_fabric(path: Path) -> None:
    finish(make_world("pull", wire=16), path, backend="LIBFABRIC", transport="efa")


def held_without_reader(
    world: World, number: int, status: str, error: str | None = None, *, leg: bool = True
) -> Request:
    """A prefilled request that D never knew; its lease expires after 30 s."""
    times, _ = pull_times(number * 300 * MS, **HEALTHY)
    request = Request(f"lost{number}")
    parent = world.emit(
        world.router, "router.request", times.router, times.first_byte + 100 * MS, trace=request.trace_id,
        request_key=request.key, mode=world.mode, status=status, error=error, client_sent_ns=("at", times.sent),
        first_byte_ns=("at", times.first_byte + 90 * MS) if status == "ok" else None, prompt_tokens=500,
    )  # fmt: skip
    shared = {"trace": request.trace_id, "request_key": request.key, "parent": parent, "status": status}
    world.emit(world.router, "router.prefill", times.p_sent, times.p_end + MS, **shared, peer_engine_id="P0")
    if leg:
        world.emit(world.router, "router.decode", times.d_sent, times.d_sent + 90 * MS, **shared, peer_engine_id="D0")
    add_request(world, request, times, router=False, decode=False)
    lease(world, request, times.p_end, times.p_end + 30 * S, "expired", heartbeats=0)
    return request


@reproduces("no-contact-from-decode")
def decode_refused(path: Path) -> None:
    world = make_world("pull")
    for number in range(3):
        held_without_reader(world, number, "error", "D0: 400 Bad Request")
    finish(world, path)


@reproduces("expected-remote-missing")
def parameters_lost(path: Path) -> None:
    world = make_world("pull")
    for number in range(3):
        held_without_reader(world, number, "ok")
    finish(world, path)


@reproduces("cancelled-counts-as-done")
def client_gone(path: Path) -> None:
    world = make_world("pull")
    for number in range(4):
        held_without_reader(world, number, "error", "client disconnected", leg=False)
    finish(world, path)


@reproduces("read-after-expiry")
def read_too_late(path: Path) -> None:
    world = make_world("pull")
    for number in range(2):
        times, _ = pull_times(number * 300 * MS, **HEALTHY | {"decode_admission": 31_000})
        request = Request(f"stale{number}", bytes=8 << 20)
        add_request(world, request, times)
        lease(world, request, times.p_end, times.p_end + 30 * S, "expired", heartbeats=0)
    finish(world, path)


@reproduces("lease-near-its-end")
def lease_old(path: Path) -> None:
    world = make_world("pull")
    for number in range(4):
        times, _ = pull_times(number * 300 * MS, **HEALTHY | {"decode_admission": 24_000})
        request = Request(f"old{number}", bytes=8 << 20)
        add_request(world, request, times)
        lease(world, request, times.p_end, times.landed, "read", heartbeats=0)
    finish(world, path)


@reproduces("aborted-holds-blocks")
def aborted_in_flight(path: Path) -> None:
    world = make_world("push")
    for number in range(2):
        times, _ = push_times(number * 300 * MS, **HEALTHY)
        request = Request(f"gone{number}")
        known = ("sent", "router", "p_sent", "d_sent", "d_start", "d_alloc")
        add_request(world, request, Times(**{name: getattr(times, name) for name in known}), prefill=False)
        world.emit(world.decode, "decode", times.d_start, times.p_end, **common(request, "d"), prompt_tokens=500,
                   external_tokens=500, local_tokens=0, output_tokens=0, finish_reason="finished_aborted")  # fmt: skip
    finish(world, path)


def start_push(world: World, number: int, key: str) -> tuple[Request, Times]:
    """A push whose prompt was done and whose D waits for it."""
    times, _ = push_times(number * 300 * MS, **HEALTHY)
    request = Request(f"{key}{number}")
    stopped = replace(times, post=None, posted=None, landed=None, landed_after=None, landed_before=None, told=None,
                      d_sched=None, d_first=None, first_byte=None, end=None)  # fmt: skip
    add_request(world, request, stopped)
    return request, times


@reproduces("post-failed")
def write_not_posted(path: Path) -> None:
    world = make_world("push")
    request, times = start_push(world, 3, "hangs")
    world.emit(world.prefill, "post", times.post, times.posted, **common(request, "p"), direction="WRITE", rank=0,
               peer_engine_id="D0", peer_request_id=request.d_id, outcome="error", descriptors=8)  # fmt: skip
    world.emit(world.prefill, "failure", times.posted, times.posted, **common(request, "p"),
               failure_type="transfer_setup_failed", error_type="nixlBackendError", peer_engine_id="D0")  # fmt: skip
    finish(world, path)


@reproduces("unpaired-push")
def no_registration(path: Path) -> None:
    world = make_world("push")
    request, times = start_push(world, 3, "alone")
    world.emit(world.prefill, "pairing", times.p_end, times.p_end + 30 * S, **common(request, "p"), rank=0,
               late_side="decode", outcome="unpaired", blocks_ready_ns=("at", times.p_end))  # fmt: skip
    finish(world, path)


@reproduces("notification-failed")
def registration_lost(path: Path) -> None:
    world = make_world("push")
    request, times = start_push(world, 3, "mute")
    world.emit(world.decode, "failure", times.d_alloc, times.d_alloc, **common(request, "d"),
               failure_type="push_reg_notif_failed", error_type="nixlRemoteDisconnectError")  # fmt: skip
    finish(world, path)


@reproduces("transfer-failed")
def broken_wire(path: Path) -> None:
    world = make_world("pull")
    request, times = add_healthy(world, COUNT, key="broken")
    world.emit(world.decode, "wire", times.posted, times.landed, **common(request, "d"), direction="READ", rank=0,
               peer_engine_id="P0", peer_request_id=request.p_id, outcome="error")  # fmt: skip
    world.emit(world.decode, "failure", times.landed, times.landed, **common(request, "d"),
               failure_type="transfer_failed", peer_engine_id="P0")  # fmt: skip
    finish(world, path)


@reproduces("local-hit-strands-prefill")
def decode_had_it(path: Path) -> None:
    world = make_world("push")
    for number in range(2):
        times, _ = push_times(number * 300 * MS, **HEALTHY)
        request = Request(f"hit{number}")
        local = replace(times, seen=None, post=None, posted=None, landed=None, landed_before=None, told=times.d_alloc)
        add_request(world, request, local)
        lease(world, request, times.p_end, times.p_end + 30 * S, "expired", heartbeats=0)
    finish(world, path)


def add_decisions(world: World, reasons: list[str], **more) -> None:
    for number, reason in enumerate(reasons):
        at = number * 300 * MS
        values = {name: value(number) if callable(value) else value for name, value in more.items()}
        world.emit(world.prefill, "decision", at, at, request_id=f"turn{number}", request_key=f"turn{number}",
                   reason=reason, peer_engine_id="D0", peer_request_id=f"before{number}", threshold=64,
                   **{"fetch_tokens": 300, "prefix_match": "yes"} | values)  # fmt: skip


@reproduces("readback-expired")
def turn_too_late(path: Path) -> None:
    world = make_world("pull")
    add_decisions(world, ["fetched", "expired"] * 4, seconds_to_expiry=lambda number: -7.5 if number % 2 else 100.0)
    finish(world, path)


@reproduces("wrong-prefix")
def history_edited(path: Path) -> None:
    world = make_world("pull")
    add_decisions(world, ["fetched"] * 6, prefix_match=lambda number: "no" if number == 3 else "yes", prefix_blocks=18,
                  prefix_mismatch_block=4)  # fmt: skip
    finish(world, path)


@reproduces("threshold-wrong")
def fetched_though_computing_was_quicker(path: Path) -> None:
    world = make_world("pull")
    add_decisions(
        world, ["fetched"] * 40, fetch_tokens=lambda number: 70 + number, fetch_ns=60 * MS, fetch_estimate_ns=60 * MS,
        recompute_estimate_ns=15 * MS, recompute_estimate_low_ns=14 * MS, recompute_estimate_high_ns=16 * MS,
        recompute_samples=50, regret_ns=45 * MS,
    )  # fmt: skip
    finish(world, path)


@reproduces("foreign-parameters")
def blocks_of_nobody(path: Path) -> None:
    world = make_world("pull")
    request = Request("strange")
    world.emit(world.prefill, "validation", 50 * MS, 50 * MS, **common(request, "p"), reason="block_id_out_of_range",
               field="remote_block_ids")  # fmt: skip
    finish(world, path)


@reproduces("incomplete-parameters")
def key_error(path: Path) -> None:
    world = make_world("push")
    request = Request("half")
    world.emit(world.decode, "failure", 50 * MS, 50 * MS, **common(request, "d"), error_type="KeyError",
               failure_type="invalid_transfer_params")  # fmt: skip
    world.emit(world.decode, "validation", 50 * MS, 50 * MS, **common(request, "d"), reason="missing_field",
               field="remote_port")  # fmt: skip
    finish(world, path)


@reproduces("telemetry-unreadable")
def no_figures(path: Path) -> None:
    world = make_world("pull")
    for span in world.decode.spans:
        if span["name"] == "wire":
            span["attributes"] = [kv for kv in span["attributes"] if kv["key"] != "kv_transfer.bytes"]
    finish(world, path)


@reproduces("engine-silent")
def second_decoder_silent(path: Path) -> None:
    engines = [{"id": name, "role": role, "instrumented": True} for name, role in (("P0", "prefill"), ("D0", "decode"))]
    silent, stock = ({"id": name, "role": "decode", "instrumented": name == "D1"} for name in ("D1", "D2"))
    finish(make_world("pull"), path, engines=[*engines, silent, stock])


@reproduces("traces-do-not-join")
def traceparent_dropped(path: Path) -> None:
    world = make_world("pull")
    for span in world.router.spans:
        span["traceId"] = blake2b(f"client {span['traceId']}".encode(), digest_size=16).hexdigest()
    finish(world, path)


@reproduces("fragmented-cache")
def split_descriptors(path: Path) -> None:
    world = make_world("pull", post=0.5)
    for number in range(COUNT, COUNT + 8):
        add_healthy(world, number, key="split", post=46)
        for span in world.decode.spans[-8:]:
            for kv in span["attributes"]:
                if kv["key"] == "kv_transfer.descriptors":
                    kv["value"] = {"intValue": "1280"}
    finish(world, path)


@reproduces("rank-skew")
def one_late_rank(path: Path) -> None:
    world = World("push", ranks=4)
    for number in range(COUNT):
        times, _ = push_times(number * 300 * MS, **HEALTHY | {"wire": 70})
        request = Request(f"skew{number}", bytes=8 << 20)
        add_request(world, request, times, slow_rank=2, slow_ns=62 * MS)
        lease(world, request, times.p_end, times.landed, "sent", heartbeats=0)
    finish(world, path)


@reproduces("handshake-refused")
def other_version(path: Path) -> None:
    world = make_world("pull")
    for number in range(2):
        world.emit(world.decode, "handshake", number * S, number * S + 4 * MS, peer_engine_id="P9", outcome="error",
                   reason="compatibility_hash_mismatch", rank=0)  # fmt: skip
    finish(world, path)


@reproduces("clocks-disagree")
def two_clocks(path: Path) -> None:
    world = World("pull", skews={"decode": -60 * MS}, boots={"decode": "boot-2"})
    for number in range(COUNT):
        add_healthy(world, number)
    finish(world, path)


def add_slow_steps(world: World, cause: str) -> None:
    for number in range(8):
        at = number * 700 * MS
        world.emit(world.decode, "step.slow", at, at + 60 * MS, step=number, cause=cause, bound_ns=25 * MS, rank=0)


@reproduces("transfers-slow-decoding")
def posts_between_steps(path: Path) -> None:
    world = make_world("pull")
    add_slow_steps(world, "post")
    finish(world, path)


@reproduces("preemption")
def blocks_lost(path: Path) -> None:
    world = make_world("pull")
    add_slow_steps(world, "preemption")
    finish(world, path)


@reproduces("efa-impaired")
def paths_time_out(path: Path) -> None:
    finish(make_world("pull"), path)
    (path / "efa").mkdir()
    with (path / "efa" / "host-a.jsonl").open("w") as file:
        for second in range(3):
            for device in ("rdmap85s0", "rdmap86s0"):
                bad = 4 * second if device == "rdmap86s0" else 0
                counters = {"tx_bytes": second << 30, "retrans_bytes": second << 14, "retrans_timeout_events": bad}
                line = {"schema": 1, "unix_ns": second * S, "device": device, "port": "1", "counters": counters}
                file.write(json.dumps(line) + "\n")

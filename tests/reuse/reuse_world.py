"""Conversations of a bidirectional pair with known truth: decisions, readbacks, leases and turns as OTLP lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from span_builder import MS, Request, Times, World, add_request, pull_times

S = 1000 * MS
BLOCK = 16
BYTES_PER_BLOCK = 1 << 16
DECISION_OF = {"fetched": "fetch", "fetch_failed_recomputed": "fetch", "expired": "fetch",
               "local_cache_covers": "local", "no_remote_metadata": "none"}  # fmt: skip
READBACK = {"handshake": 0.0, "dispatch": 2.0, "post": 1.0, "wire": 10.0, "completion_lag": 3.0}


@dataclass
class Turn:
    """One turn: when the client sends it (ms after the turn before ended), what P decides, and what that takes (ms)."""

    reason: str = "fetched"
    prompt: int = 400
    remote: int = 300
    local: int = 0
    gap: float = 500.0
    queue: float = 4.0
    queue_after: float = 2.0
    readback: dict = field(default_factory=lambda: dict(READBACK))
    compute: float = 30.0
    decode: float = 100.0
    decision: dict = field(default_factory=dict)
    outcome: str = "ok"
    router: bool = True
    given: bool = True

    @property
    def is_fetched(self) -> bool:
        return self.reason in ("fetched", "fetch_failed_recomputed", "expired")

    @property
    def fetch_tokens(self) -> int:
        return max(0, min(self.remote, self.prompt) - self.local)


def make_world(mode: str = "bidirectional") -> World:
    world = World("pull")
    for process in (world.router, world.prefill, world.decode):
        process.mode = mode
    return world


def add_turn(
    world: World, conversation: str, number: int, at: int, *, turn: Turn, previous: Request | None
) -> tuple[Request, int]:
    """Emit one turn sent at `at`; returns its request and when it ended."""
    readback = turn.readback if turn.is_fetched else {}
    waited = sum(readback.values())
    times, _ = pull_times(
        at, prefill_queue=turn.queue + waited + (turn.queue_after if waited else 0), prefill_compute=turn.compute
    )
    times.end = times.first_byte + round(turn.decode * MS)
    request = Request(f"{conversation}-t{number}", prompt_tokens=turn.prompt)
    add_request(world, request, times, router=False)
    if turn.router:
        add_router(world, request, times, conversation if turn.given else None, number)
    common = {"trace": request.trace_id, "request_id": request.p_id, "request_key": request.key}
    allocated = times.p_start + round(turn.queue * MS)
    told = add_readback(world, request, allocated, turn, previous) if waited else allocated
    fix_prefill(world, request, turn)
    peer = {"peer_engine_id": world.decode.engine, "peer_request_id": previous.d_id} if previous else {}
    world.emit(
        world.prefill, "decision", times.p_start, allocated, **common, **peer, reason=turn.reason,
        decision=DECISION_OF.get(turn.reason, "recompute"),
        prompt_tokens=turn.prompt, remote_tokens=turn.remote if previous else 0, local_tokens=turn.local,
        fetch_tokens=turn.fetch_tokens if previous else 0, threshold=64,
        fetch_ns=told - allocated if waited else None, **turn.decision,
    )  # fmt: skip
    return request, times.end


def add_router(world: World, request: Request, times: Times, conversation: str | None, number: int) -> None:
    common = {"trace": request.trace_id, "request_key": request.key}
    parent = world.emit(
        world.router, "router.request", times.router, times.end, **common, mode="bidirectional", status="ok",
        client_sent_ns=("at", times.sent), prompt_tokens=request.prompt_tokens, first_byte_ns=("at", times.first_byte),
        conversation_id=conversation, turn=number if conversation else None,
        readback_offered="offered" if number else "first_turn",
    )  # fmt: skip
    for name, begin, end in (("prefill", times.p_sent, times.p_end), ("decode", times.d_sent, times.end)):
        world.emit(world.router, f"router.{name}", begin, end, parent=parent, **common, status="ok")


def fix_prefill(world: World, request: Request, turn: Turn) -> None:
    """What add_request says of P's tokens holds for a first turn only."""
    fetched = turn.fetch_tokens if turn.reason == "fetched" else 0
    values = {"cached_tokens": turn.local, "computed_tokens": turn.prompt - turn.local - fetched}
    for span in world.prefill.spans:
        if span["name"] == "prefill" and {"stringValue": request.p_id} in [kv["value"] for kv in span["attributes"]]:
            for kv in span["attributes"]:
                name = kv["key"].removeprefix("kv_transfer.")
                if name in values:
                    kv["value"] = {"intValue": str(values[name])}


def add_readback(world: World, request: Request, allocated: int, turn: Turn, previous: Request | None) -> int:
    common = {"trace": request.trace_id, "request_id": request.p_id, "request_key": request.key}
    at = [allocated]
    for part in ("handshake", "dispatch", "post", "wire", "completion_lag"):
        at.append(at[-1] + round(turn.readback.get(part, 0) * MS))
    _, shaken, post, posted, landed, told = at
    if shaken > allocated:
        world.handshake(world.prefill, world.decode, allocated, shaken)
    world.emit(
        world.prefill, "prefill.remote_wait", allocated, told, **common, outcome=turn.outcome,
        blocks=turn.fetch_tokens // BLOCK, external_tokens=turn.fetch_tokens,
    )  # fmt: skip
    if turn.outcome == "ok":
        peer = {"peer_engine_id": world.decode.engine, "peer_request_id": previous.d_id if previous else "elsewhere"}
        size = {"bytes": turn.fetch_tokens // BLOCK * BYTES_PER_BLOCK, "descriptors": 8, "direction": "READ", "rank": 0}
        world.emit(world.prefill, "post", post, posted, **common, **peer, **size, thread="main", outcome="ok")
        world.emit(
            world.prefill, "wire", posted, landed + 1000, **common, **peer, **size, polls=2, outcome="ok",
            landed_after_ns=("at", max(posted, landed - 1000)), landed_before_ns=("at", landed + 1000),
        )  # fmt: skip
    return told


def add_lease(
    world: World, process_name: str, request: Request, start: int, end: int, *, reason: str, outcome: str, **more
) -> None:
    process = getattr(world, process_name)
    own = request.p_id if process_name == "prefill" else request.d_id
    blocks = more.pop("blocks", 10)
    world.emit(
        process, "lease", start, end, trace=request.trace_id, request_id=own, request_key=request.key, reason=reason,
        blocks=blocks, bytes=blocks * BYTES_PER_BLOCK, outcome=outcome, heartbeats=more.pop("heartbeats", 0), **more,
    )  # fmt: skip


def add_conversation(world: World, name: str, at: int, turns: list[Turn]) -> list[tuple[Request, int, int]]:
    """Emit a conversation; returns each turn's request with when it was sent and when it ended."""
    done: list[tuple[Request, int, int]] = []
    now, previous = at, None
    for number, turn in enumerate(turns):
        sent = now if number == 0 else now + round(turn.gap * MS)
        request, now = add_turn(world, name, number, sent, turn=turn, previous=previous)
        done.append((request, sent, now))
        previous = request
    return done


def write(world: World, path: Path, **manifest) -> Path:
    world.write(path / "traces")
    engines = [
        {"id": "P0", "role": "prefill", "instrumented": True},
        {"id": "D0", "role": "decode", "instrumented": True},
    ]
    (path / "manifest.json").write_text(
        json.dumps({"engines": engines, "mode": "bidirectional", "backend": "UCX"} | manifest)
    )
    return path

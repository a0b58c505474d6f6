"""Write spans of synthetic requests with known ground truth as OTLP JSON lines, as the contract in docs/spans.md says.

Times are given on one true clock (ns); every process stamps them through its own anchor, as real ones do.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

MS = 1_000_000
EPOCH = 1_790_000_000 * 1_000_000_000
BOOT_PERF = 5_000 * 1_000_000_000
"""CLOCK_MONOTONIC of the boot at EPOCH."""


def trace_of(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest()


@dataclass
class Process:
    """One process with its own anchor: skew is how far (ns) its wall clock was off when it anchored."""

    service: str
    engine: str
    pid: int
    mode: str
    boot: str = "boot-1"
    anchored: int = 0
    skew: int = 0
    role: str = ""
    spans: list[dict] = field(default_factory=list)

    def stamp(self, true: int) -> int:
        return EPOCH + true + self.skew

    @property
    def resource(self) -> dict:
        return {
            "service.name": self.service,
            "service.instance.id": self.engine,
            "host.name": "host",
            "process.pid": self.pid,
            "kvlens.role": self.role or self.service.removeprefix("vllm-").removeprefix("kvlens-"),
            "kvlens.mode": self.mode,
            "kvlens.schema": "1",
            "kvlens.clock.boot_id": self.boot,
            "kvlens.clock.anchor_unix_ns": self.stamp(self.anchored),
            "kvlens.clock.anchor_perf_ns": BOOT_PERF + self.anchored,
        }


_ids = itertools.count(1)


def encode_attributes(attributes: dict) -> list[dict]:
    def encode(value):
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, float):
            return {"doubleValue": value}
        return {"stringValue": value}

    return [{"key": key, "value": encode(value)} for key, value in attributes.items() if value is not None]


class World:
    """Processes of one run and the spans that they emit.

    mode: push or pull. ranks: tensor-parallel ranks. skews: wall-clock error (ns) of each process's anchor by name
    (router, prefill, decode); the true durations are the same whatever they are.
    """

    def __init__(self, mode: str, *, ranks: int = 1, skews: dict[str, int] | None = None, boots: dict | None = None):
        skews, boots = skews or {}, boots or {}
        self.mode, self.ranks = mode, ranks
        self.router, self.prefill, self.decode = (
            Process(
                service, engine, pid, mode, anchored=pid * MS, skew=skews.get(name, 0), boot=boots.get(name, "boot-1")
            )
            for service, engine, pid, name in (
                ("kvlens-router", "R0", 3, "router"),
                ("vllm-prefill", "P0", 1, "prefill"),
                ("vllm-decode", "D0", 2, "decode"),
            )
        )
        self.worker = self.decode if mode == "pull" else self.prefill

    def emit(
        self, process: Process, name: str, start: int, end: int, *, trace="0" * 32, parent="", **attributes
    ) -> str:
        """Emit one span; attribute values that end in _ns and are true times are given as ("at", ns)."""
        span_id = f"{next(_ids):016x}"
        values = {
            f"kv_transfer.{key}": process.stamp(value[1]) if isinstance(value, tuple) else value
            for key, value in attributes.items()
        }
        span = {
            "traceId": trace,
            "spanId": span_id,
            "parentSpanId": parent,
            "flags": 256,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(process.stamp(start)),
            "endTimeUnixNano": str(process.stamp(end)),
            "attributes": encode_attributes(values),
            "status": {},
        }
        process.spans.append(span)
        return span_id

    def handshake(self, process: Process, peer: Process, start: int, end: int, rank: int = 0) -> None:
        self.emit(process, "handshake", start, end, peer_engine_id=peer.engine, outcome="ok", rank=rank)

    def write(self, directory: Path, per_line: int = 7) -> Path:
        """Write one file per process under directory, a few spans per line."""
        directory.mkdir(parents=True, exist_ok=True)
        for process in (self.router, self.prefill, self.decode):
            if not process.spans:
                continue
            path = directory / f"{process.service}-{process.engine}-{process.pid}-0.otlp.jsonl"
            with path.open("a") as file:
                for at in range(0, len(process.spans), per_line):
                    file.write(encode_line(process.resource, process.spans[at : at + per_line]) + "\n")
        return directory


def encode_line(resource: dict, spans: list[dict], scope: str = "kvlens") -> str:
    scopes = [{"scope": {"name": scope, "version": "1"}, "spans": spans}]
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": encode_attributes(resource)}, "scopeSpans": scopes}]}
    )


@dataclass
class Times:
    """True milestones of one request (ns); None leaves the span out."""

    sent: int | None = None
    router: int | None = None
    p_sent: int | None = None
    p_start: int | None = None
    p_sched: int | None = None
    p_end: int | None = None
    d_sent: int | None = None
    d_start: int | None = None
    d_alloc: int | None = None
    seen: int | None = None
    post: int | None = None
    posted: int | None = None
    landed: int | None = None
    landed_after: int | None = None
    landed_before: int | None = None
    told: int | None = None
    d_sched: int | None = None
    d_first: int | None = None
    first_byte: int | None = None
    end: int | None = None


def pull_times(at: int, **durations: float) -> tuple[Times, dict[str, int]]:
    """Times of a pull request from segment durations (ms), and its true segments (ns)."""
    names = [
        "route",
        "prefill_ingress",
        "prefill_queue",
        "prefill_compute",
        "handoff_dispatch",
        "decode_admission",
        "dispatch",
        "post",
        "wire",
        "completion_lag",
        "decode_queue",
        "first_decode",
        "delivery",
    ]
    truth = {name: round(durations.get(name, 1.0) * MS) for name in names}
    points = [at]
    for name in names:
        points.append(points[-1] + truth[name])
    (
        sent,
        p_sent,
        p_start,
        p_sched,
        p_end,
        d_start,
        d_alloc,
        post,
        posted,
        landed,
        told,
        d_sched,
        d_first,
        first_byte,
    ) = points
    return Times(
        sent=sent, router=(sent + p_sent) // 2, p_sent=p_sent, p_start=p_start, p_sched=p_sched, p_end=p_end,
        d_sent=(p_end + d_start) // 2, d_start=d_start, d_alloc=d_alloc, post=post, posted=posted,
        landed=landed, landed_after=landed - 1000, landed_before=landed + 1000, told=told, d_sched=d_sched,
        d_first=d_first, first_byte=first_byte, end=first_byte + 100 * MS,
    ), truth  # fmt: skip


def push_times(at: int, **durations: float) -> tuple[Times, dict[str, int]]:
    """Times of a push request from durations (ms); D's branch: d_ingress, decode_admission, registration."""
    d = {name: round(value * MS) for name, value in durations.items()}
    ms = lambda name: d.get(name, MS)  # noqa: E731
    p_sent = at + ms("route")
    p_start = p_sent + ms("prefill_ingress")
    p_sched = p_start + ms("prefill_queue")
    p_end = p_sched + ms("prefill_compute")
    d_start = p_sent + ms("d_ingress")
    d_alloc = d_start + ms("decode_admission")
    seen = d_alloc + ms("registration")
    post = max(p_end, seen) + ms("dispatch")
    posted = post + ms("post")
    landed = posted + ms("wire")
    told = landed + ms("completion_lag")
    d_sched = told + ms("decode_queue")
    d_first = d_sched + ms("first_decode")
    first_byte = d_first + ms("delivery")
    times = Times(
        sent=at, router=(at + p_sent) // 2, p_sent=p_sent, p_start=p_start, p_sched=p_sched, p_end=p_end, d_sent=p_sent,
        d_start=d_start, d_alloc=d_alloc, seen=seen, post=post, posted=posted, landed=landed,
        landed_after=landed - 1000, landed_before=landed + 1000, told=told, d_sched=d_sched, d_first=d_first,
        first_byte=first_byte, end=first_byte + 100 * MS,
    )  # fmt: skip
    chain = (
        "route", "prefill_ingress", "prefill_queue", "prefill_compute", "dispatch", "post", "wire", "completion_lag",
        "decode_queue", "first_decode", "delivery",
    )  # fmt: skip
    truth = {name: ms(name) for name in chain}
    truth["pairing"] = max(0, d_start - p_end)
    truth["decode_admission"] = max(0, d_alloc - max(d_start, p_end))
    truth["registration"] = max(0, seen - max(d_alloc, p_end))
    return times, truth


@dataclass
class Request:
    """Who the request is; ids as vLLM makes them."""

    key: str
    suffix: str = "0a1b2c3d"
    trace: str | None = None
    prompt_tokens: int = 500
    output_tokens: int = 11
    bytes: int = 1 << 20
    child: int | None = None

    @property
    def prefix(self) -> str:
        return "" if self.child is None else f"{self.child}_"

    @property
    def p_id(self) -> str:
        return f"cmpl-{self.key}-0-{self.suffix}"

    @property
    def d_id(self) -> str:
        return f"{self.prefix}cmpl-{self.key}-0-{self.suffix[::-1]}"

    @property
    def trace_id(self) -> str:
        return self.trace or trace_of(self.key)


def add_request(
    world: World, request: Request, times: Times, *, router=True, prefill=True, decode=True, dead_decode=False,
    slow_rank: int | None = None, slow_ns: int = 0,
) -> None:  # fmt: skip
    """Emit a request's spans; router, prefill, decode say which processes are instrumented.

    slow_rank: with several ranks, the one whose transfer is the request's; the others land slow_ns earlier.
    dead_decode: D was killed after its last known milestone: no `decode` span.
    """
    if router:
        add_router(world, request, times)
    if prefill:
        add_prefill(world, request, times)
    if decode:
        add_decode(world, request, times, dead=dead_decode)
    if (times.post or times.seen) is not None and (prefill if world.mode == "push" else decode):
        for rank in range(world.ranks):
            early = slow_ns if slow_rank not in (None, rank) else 0
            add_transfer(world, request, times, rank, early)


def add_router(world: World, request: Request, times: Times) -> None:
    common = {"trace": request.trace_id, "request_key": request.key}
    ok = times.end is not None
    end = times.end or (times.router or 0) + 1000 * MS
    parent = world.emit(
        world.router, "router.request", times.router, end, **common, mode=world.mode, status="ok" if ok else "error",
        client_sent_ns=("at", times.sent) if times.sent is not None else None, prompt_tokens=request.prompt_tokens,
        first_byte_ns=("at", times.first_byte) if times.first_byte is not None else None, streaming=True,
    )  # fmt: skip
    if times.p_sent is not None:
        answered = (times.p_end or end) + MS // 10
        world.emit(
            world.router,
            "router.prefill",
            times.p_sent,
            answered,
            parent=parent,
            **common,
            peer_engine_id=world.prefill.engine,
            status="ok",
        )
    if times.d_sent is not None:
        world.emit(
            world.router,
            "router.decode",
            times.d_sent,
            end,
            parent=parent,
            **common,
            peer_engine_id=world.decode.engine,
            status="ok",
        )


def add_prefill(world: World, request: Request, times: Times) -> None:
    common = {"trace": request.trace_id, "request_id": request.p_id, "request_key": request.key}
    if times.p_sched is not None:
        world.emit(world.prefill, "prefill.queue", times.p_start, times.p_sched, **common)
    if times.p_end is not None:
        world.emit(world.prefill, "prefill.compute", times.p_sched, times.p_end, **common, chunks=1)
        world.emit(
            world.prefill, "prefill", times.p_start, times.p_end, **common, prompt_tokens=request.prompt_tokens,
            cached_tokens=0, computed_tokens=request.prompt_tokens, chunks=1, finish_reason="finished_length_capped",
        )  # fmt: skip


def add_decode(world: World, request: Request, times: Times, *, dead: bool) -> None:
    common = {"trace": request.trace_id, "request_id": request.d_id, "request_key": request.key}
    remote = times.post is not None
    if times.d_alloc is not None:
        world.emit(world.decode, "decode.admission", times.d_start, times.d_alloc, **common, attempts=1)
    if times.told is not None and remote:
        world.emit(world.decode, "decode.remote_wait", times.d_alloc, times.told, **common, outcome="ok")
    if times.d_sched is not None:
        world.emit(world.decode, "decode.queue", times.told, times.d_sched, **common)
    if times.d_first is not None:
        world.emit(world.decode, "decode.first_step", times.d_sched, times.d_first, **common, steps=1)
    if times.end is not None and not dead:
        peer = {"peer_request_id": request.p_id, "peer_engine_id": world.prefill.engine} if world.mode == "pull" else {}
        world.emit(
            world.decode, "decode", times.d_start, times.end, **common, prompt_tokens=request.prompt_tokens,
            external_tokens=request.prompt_tokens if remote else 0, local_tokens=0, output_tokens=request.output_tokens,
            finish_reason="finished_length_capped", **peer,
        )  # fmt: skip


def add_transfer(world: World, request: Request, times: Times, rank: int, early: int) -> None:
    push = world.mode == "push"
    own, peer_id = (request.p_id, request.d_id) if push else (request.d_id, request.p_id)
    peer = (world.decode if push else world.prefill).engine
    common = {
        "trace": request.trace_id, "request_id": own, "request_key": request.key, "rank": rank, "peer_engine_id": peer,
        "peer_request_id": peer_id, "direction": "WRITE" if push else "READ", "bytes": request.bytes, "descriptors": 8,
    }  # fmt: skip
    if push and times.seen is not None and times.p_end is not None:
        world.emit(
            world.prefill, "pairing", min(times.seen, times.p_end), max(times.seen, times.p_end),
            **{name: value for name, value in common.items() if name not in ("direction", "bytes", "descriptors")},
            registration_seen_ns=("at", times.seen), blocks_ready_ns=("at", times.p_end), outcome="paired",
            late_side="decode" if times.seen > times.p_end else "prefill", late_ns=abs(times.seen - times.p_end),
        )  # fmt: skip
    if times.post is None:
        return
    world.emit(world.worker, "post", times.post, times.posted, **common, thread="main", prep_ns=10, outcome="ok")
    if times.landed_before is not None:
        world.emit(
            world.worker, "wire", times.posted, times.landed_before - early, **common, polls=3, outcome="ok",
            landed_after_ns=("at", max(times.posted, times.landed_after - early)),
            landed_before_ns=("at", times.landed_before - early),
        )  # fmt: skip

"""Router, engines and the hand-over between them: the process that each request of a replay runs through."""

from __future__ import annotations

import random
from dataclasses import dataclass

import simpy

from ..parameters import BIDIRECTIONAL, LEAST_LOADED, PULL, PUSH, RANDOM, Arrangement, Hop, Job, Parameters, apply
from .decode import DecodeEngine
from .machine import Events, Machine
from .prefill import PrefillEngine
from .request import Luck, Request


@dataclass(frozen=True)
class EngineLoad:
    """What one engine had to hold: mean and maximum of waiting requests and of held blocks."""

    engine: str
    queue_mean: float
    queue_max: int
    blocks_mean: float
    blocks_max: int


class Fleet:
    """One arrangement of engines in one simulation."""

    def __init__(self, parameters: Parameters, arrangement: Arrangement, seed: int) -> None:
        self.env = simpy.Environment()
        self._p = apply(parameters, arrangement)
        self._arrangement, self._seed = arrangement, seed
        self._mode = PUSH if arrangement.mode == PUSH else PULL
        self._choice = random.Random(f"{seed}/binding")
        self._turn = 0
        self._bound = [0] * self._p.decode_engines
        self.finished = 0
        names = [f"P{place}" for place in range(self._p.prefill_engines)]
        names += [f"D{place}" for place in range(self._p.decode_engines)]
        slow = {"P": self._p.contention.prefill, "D": self._p.contention.decode}
        shared = {name: slow[name[0]] for name in names}
        self._machine = Machine(self.env, shared, self._p.contention.idle_intensity)
        self.prefills = [self._make_prefill(name) for name in names if name[0] == "P"]
        self.decodes = [self._make_decode(name) for name in names if name[0] == "D"]
        self._writers = [simpy.Resource(self.env) for _ in self.prefills]
        self._links = [simpy.Resource(self.env) for _ in self.prefills]
        self._readers = [simpy.Resource(self.env) for _ in self.decodes]
        self._registered: dict[int, simpy.Event] = {}
        self._sent: dict[int, Request] = {}
        self._ended: dict[int, simpy.Event] = {}

    def send(self, job: Job) -> Request:
        """Start a request at its arrival time."""
        request = Request(job, Luck(self._seed, job.index), prefill=job.prefill % len(self.prefills))
        self._registered[job.index], self._ended[job.index] = self.env.event(), self.env.event()
        self._sent[job.index] = request
        self.env.process(self._serve(request))
        return request

    def list_loads(self) -> list[EngineLoad]:
        """What each engine had to hold until now."""
        now = self.env.now
        return [
            EngineLoad(one.name, one.queue.mean(now), one.queue.maximum, one.blocks.mean(now), one.blocks.maximum)
            for one in (*self.prefills, *self.decodes)
        ]

    def _make_prefill(self, name: str) -> PrefillEngine:
        return PrefillEngine(
            self.env, name, self._p.prefill, machine=self._machine, seed=self._seed, mode=self._mode,
            on_done=self._answer, hand_over=self._start_push, fetches=self._fetches, read=self._read_back,
            at_once=self._arrangement.no_coordination,
        )  # fmt: skip

    def _make_decode(self, name: str) -> DecodeEngine:
        return DecodeEngine(
            self.env, name, self._p.decode, machine=self._machine, seed=self._seed, mode=self._mode, post=self._read,
            register=self._register, on_first=self._deliver, on_end=self._end,
            keeps=self._arrangement.mode == BIDIRECTIONAL, reader_thread=self._arrangement.reader_thread,
            at_once=self._arrangement.no_coordination,
        )  # fmt: skip

    def _serve(self, request: Request) -> Events:
        """Route a request: push sends both legs, pull the prefill leg only."""
        job = request.job
        if job.previous in self._ended and job.previous is not None:
            yield self._ended[job.previous]
            yield self.env.timeout(job.gap)
        else:
            yield self.env.timeout(job.arrival - self.env.now)
        request.mark("r_start", self.env.now)
        yield self.env.timeout(self._p.network.route)
        request.mark("r_prefill_start", self.env.now)
        if self._mode == PUSH:
            request.decode = self._bind(request, PUSH)
            self.env.process(self._send_decode(request))
        engine = self.prefills[request.prefill]
        yield self.env.timeout(self._hop(request, self._p.network.to_prefill, "to_prefill", engine.is_stepping))
        engine.put(request)

    def _answer(self, request: Request) -> None:
        if self._mode == PULL:
            self.env.process(self._hand_off(request))

    def _hand_off(self, request: Request) -> Events:
        """handoff_dispatch: P's answer goes to the router, which chooses D and sends its leg."""
        engine = self.prefills[request.prefill]
        yield self.env.timeout(self._hop(request, self._p.network.from_prefill, "from_prefill", engine.is_stepping))
        yield self.env.timeout(self._p.network.turnaround)
        request.decode = self._bind(request, PULL)
        yield from self._send_decode(request)

    def _send_decode(self, request: Request) -> Events:
        engine = self.decodes[request.decode]
        yield self.env.timeout(self._hop(request, self._p.network.to_decode, "to_decode", engine.is_stepping))
        engine.put(request)

    def _bind(self, request: Request, mode: str) -> int:
        """Choose D and count the request there, as a router does."""
        place = self._choose(request, mode)
        self._bound[place] += 1
        return place

    def _choose(self, request: Request, mode: str) -> int:
        """Choose as recorded, or by the policy where binding is late; least_loaded: fewest requests not yet ended."""
        policy, count = self._arrangement.late_binding, len(self.decodes)
        if policy is None or mode == PUSH:
            return request.job.decode % count
        if policy == RANDOM:
            return self._choice.randrange(count)
        if policy == LEAST_LOADED:
            return min(range(count), key=lambda place: (self._bound[place], place))
        self._turn += 1
        return (self._turn - 1) % count

    def _read(self, request: Request) -> Events:
        """Pull: D posts the read, in its step or on a reader thread."""
        yield from self._post(request)
        self.env.process(self._fly(request))

    def _register(self, request: Request) -> None:
        self.env.process(self._see_registration(request))

    def _see_registration(self, request: Request) -> Events:
        yield self.env.timeout(self._p.network.registration)
        request.mark("reg_seen", self.env.now)
        self._registered[request.job.index].succeed()

    def _fetches(self, request: Request) -> bool:
        """Whether P reads the earlier turns back: enough tokens to save, and D still has them."""
        job = request.job
        before = self._sent.get(job.previous) if job.previous is not None else None
        if self._arrangement.mode != BIDIRECTIONAL or not job.offered or before is None:
            return False
        return before.is_kept and job.offered >= self._p.threshold

    def _read_back(self, request: Request) -> Events:
        """readback: P posts the read of what D kept, in its step."""
        job, network = request.job, self._p.network
        size = job.size * job.offered / job.tokens
        yield self.env.timeout(network.post_fixed + network.post_per_byte * size)
        self.env.process(self._fly_back(request, size))

    def _fly_back(self, request: Request, size: float) -> Events:
        before, network = self._sent[request.job.previous or 0], self._p.network
        transmission = network.wire_per_byte * size
        if network.wire_fixed + transmission and request.luck.source("readback").random() >= network.inline:
            yield self.env.timeout(network.wire_fixed)
            with self._readers[before.decode].request() as turn:
                yield turn
                yield self.env.timeout(transmission)
        request.mark("p_landed", self.env.now)
        self._drop(before)

    def _expire(self, request: Request) -> Events:
        """Free what D kept for the next turn when its time is over; where the run does not tell the time, never."""
        if self._p.retention is not None:
            yield self.env.timeout(self._p.retention)
            self._drop(request)

    def _drop(self, request: Request) -> None:
        if request.is_kept:
            request.is_kept = False
            self.decodes[request.decode].release(request)

    def _start_push(self, request: Request) -> None:
        self.env.process(self._push(request))

    def _push(self, request: Request) -> Events:
        """Push: P's writer waits for the registration (pairing) and posts one write after the other."""
        yield self._registered[request.job.index]
        with self._writers[request.prefill].request() as turn:
            yield turn
            yield from self._post(request)
        yield from self._fly(request)

    def _post(self, request: Request) -> Events:
        request.mark("post_start", self.env.now)
        network = self._p.network
        yield self.env.timeout(network.post_fixed + network.post_per_byte * request.job.size)
        request.mark("post_end", self.env.now)

    def _fly(self, request: Request) -> Events:
        """wire: the bytes take their time on P's link, which transfers share one after the other."""
        network = self._p.network
        transmission = network.wire_per_byte * request.job.size
        inline = network.wire_fixed + transmission == 0
        if not inline and request.luck.source("inline").random() >= network.inline:
            yield self.env.timeout(network.wire_fixed)
            with self._links[request.prefill].request() as turn:
                yield turn
                yield self.env.timeout(transmission)
        else:
            inline = True
        request.mark("landed", self.env.now)
        self.prefills[request.prefill].release(request)
        if self._mode == PUSH and network.notify_at_poll and not inline:
            yield self.prefills[request.prefill].await_poll()
        request.notified = self.env.now
        if self._arrangement.no_coordination:
            self.decodes[request.decode].tell(request)

    def _deliver(self, request: Request) -> None:
        hop = self._hop(request, self._p.network.delivery, "delivery", is_busy=True)
        request.mark("r_first_byte", self.env.now + hop)

    def _end(self, request: Request) -> None:
        self._ended[request.job.index].succeed()
        if self._arrangement.mode == BIDIRECTIONAL:
            request.is_kept = True
            self.env.process(self._expire(request))
        self._bound[request.decode] -= 1
        self.finished += 1

    def _hop(self, request: Request, hop: Hop, purpose: str, is_busy: bool) -> float:
        return hop.draw(request.luck.source(purpose), is_busy=is_busy)

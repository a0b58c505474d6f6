"""The incidents of each mode: what is injected, and which alerts it must raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from lab.ports import choose_port
from lab.run import Pair
from lab.workload import Workload

from .collector import Collector
from .devices import CONGESTED, HEALTHY
from .load import Load, OpenRequest, ask, ask_of_gone_peer, make_body, prefill_only
from .monitor import Monitor


@dataclass
class Scene:
    """What an incident acts on. `stack` ends its loads; `kept` lives on into the next incident."""

    pair: Pair
    monitor: Monitor
    collector: Collector
    stack: ExitStack = field(default_factory=ExitStack)
    kept: list[OpenRequest] = field(default_factory=list)

    def load(self, prefix: str, gap_s: float = 0.8, lengths: tuple[int, ...] = (200, 400, 800)) -> None:
        load = Load(self.pair, prefix, gap_s, lengths)
        load.start()
        self.stack.callback(load.close)


@dataclass(frozen=True)
class Incident:
    """A phase of a pair's life.

    Attributes:
        name: also the prefix of its requests' ids.
        story: what happens, in a few words.
        begin: injects it and starts the load.
        alerts: must fire in it.
        also: may fire in it, because it is true as well.
        seconds: ends at the latest then, or once all its alerts fire.
    """

    name: str
    story: str
    begin: Callable[[Scene], None]
    alerts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    seconds: float = 45
    stay: bool = False
    """Whether it lasts for all its seconds."""


def healthy(scene: Scene) -> None:
    scene.load("healthy")


def delay(site: str, ms: float, prefix: str, gap_s: float = 0.8) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        scene.pair.set_faults({site: ms})
        scene.load(prefix, gap_s)

    return begin


def lose_parameters(scene: Scene) -> None:
    scene.load("parameters-lost")
    for number in range(5):
        ask(scene.pair.decode.url, f"parameters-lost-d-{number}", make_body(200, 2))
        time.sleep(0.8)
    load = Load(scene.pair, "unused")
    load._pair = _DecodeAlone(scene.pair)  # type: ignore[assignment]
    load.start()
    scene.stack.callback(load.close)


class _DecodeAlone:
    def __init__(self, pair: Pair) -> None:
        self.router_url = pair.decode.url


def slow_wire(scene: Scene) -> None:
    assert scene.monitor.devices is not None
    devices = scene.monitor.devices
    devices.retransmitted = CONGESTED
    scene.stack.callback(setattr, devices, "retransmitted", HEALTHY)
    delay("wire", 400, "slow-wire")(scene)


def nobody_reads(scene: Scene) -> None:
    scene.load("nobody-reads-beside")
    for number in range(3):
        prefill_only(scene.pair, f"nobody-reads-{number}")


def long_wire(scene: Scene) -> None:
    scene.pair.set_faults({"wire": 18_000})
    scene.load("long-wire", 3.0)


def gone_peer(scene: Scene) -> None:
    scene.load("gone-peer-beside")
    port = choose_port(None, "an engine that is gone")
    for number in range(2):
        ask_of_gone_peer(scene.pair, f"gone-peer-{number}", port)


def refuse_spans(scene: Scene) -> None:
    scene.collector.refuses = True
    scene.stack.callback(setattr, scene.collector, "refuses", False)
    scene.load("refused-spans")


def kill_prefill(scene: Scene) -> None:
    scene.pair.set_faults({"wire": 4000})
    scene.load("killed-prefill", 0.7)
    time.sleep(3.0)
    scene.pair.prefill.kill()


def kill_decode(scene: Scene) -> None:
    scene.pair.set_faults({"wire": 4000})
    scene.load("killed-decode", 0.7)
    time.sleep(3.0)
    scene.pair.decode.kill()


def lose_prefill(scene: Scene) -> None:
    scene.load("prefill-lost-beside")
    scene.kept += [OpenRequest(scene.pair, f"prefill-lost-{number}") for number in range(3)]


def cancel(scene: Scene) -> None:
    scene.load("cancelled-beside")
    for request in scene.kept:
        request.cancel()
    scene.kept.clear()


def converse(
    prefix: str, conversations: int, length: int, think_s: float, rate: float = 0.6
) -> Callable[[Scene], None]:  # fmt: skip
    def begin(scene: Scene) -> None:
        scene.pair.run_workload(
            Workload(
                requests=conversations, rate=rate, turns=2, turn_tokens=100, think_s=think_s, input_lens=(length,),
                output_len=8, id_prefix=prefix,
            )
        )  # fmt: skip

    return begin


def long_prompts(scene: Scene) -> None:
    # 12 and 25 MB: smaller ones pass between two polls also over TCP.
    scene.load("slow-transport", 1.6, (1500, 3000))


HEALTHY_PHASE = Incident("healthy", "nothing", healthy, seconds=45, stay=True)

PULL = (
    HEALTHY_PHASE,
    Incident(
        "late completion", "D's worker reports finished reads 600 ms late", delay("completion", 600, "late-completion"),
        ("KvlensCoordinationShareHigh",),
    ),
    Incident(
        "parameters lost", "requests reach D without transfer parameters", lose_parameters,
        ("KvlensExpectedRemoteMissing",),
    ),
    Incident("nobody reads", "P computes prompts that no decoder asks for", nobody_reads, ("KvlensLeaseExpired",)),
    Incident(
        "gone peer", "D is sent to an engine that is not there", gone_peer, ("KvlensHandshakeFailing",),
        ("KvlensLeaseExpired",),
    ),
    Incident(
        "slow wire", "bytes leave 400 ms late, fixture devices retransmit 1.2 %", slow_wire,
        ("KvlensTransferRateLow", "KvlensEfaRetransmissions"), seconds=60,
    ),
    Incident(
        "stuck wire", "bytes leave 18 s late", long_wire, ("KvlensDecodeWaitStuck", "KvlensLeaseOverdue"),
        ("KvlensTransferRateLow",),
    ),
    # The stuck reads end now, each at a rate of 0.1 MB/s.
    Incident("refused spans", "the collector answers 400", refuse_spans, ("KvlensDropping",),
             ("KvlensTransferRateLow",)),
    Incident("own failure", "kvlens's own code raises", delay("telemetry", 1, "own-failure"), ("KvlensGuardErrors",)),
    Incident(
        "killed prefill", "P is killed while D waits for its bytes", kill_prefill, ("KvlensTransferFailing",),
        ("KvlensHandshakeFailing", "KvlensDecodeWaitStuck", "KvlensTransferRateLow"), seconds=30,
    ),
)  # fmt: skip

PUSH = (
    HEALTHY_PHASE,
    Incident(
        "late registration", "the router sends the decode leg 1.5 s late",
        delay("router_decode_leg", 1500, "late-registration"), ("KvlensRegistrationAlwaysLate",),
        ("KvlensCoordinationShareHigh",), seconds=50,
    ),
    Incident("prefill lost", "the decode leg arrives, the prefill leg never does", lose_prefill,
             ("KvlensDecodeWaitStuck",), ("KvlensCoordinationShareHigh",)),
    Incident("cancelled", "the clients of those requests go away", cancel, ("KvlensAbortedBlocksHeld",), seconds=60),
    # After this D waits for ever for what P gave away: nothing that asks for a quiet D may follow.
    Incident(
        "stalled writer", "P's writer thread waits 12 s before each post",
        delay("dispatch", 12_000, "stalled-writer", 2.0), ("KvlensWriterStalled",),
        # D waits, and P's lease ends before the writer comes to it.
        ("KvlensDecodeWaitStuck", "KvlensLeaseOverdue", "KvlensLeaseExpired", "KvlensCoordinationShareHigh"),
        seconds=35,
    ),
    Incident("killed decode", "D is killed while P writes", kill_decode, ("KvlensTransferFailing",),
             ("KvlensHandshakeFailing", "KvlensLeaseExpired", "KvlensTransferRateLow", "KvlensLeaseOverdue"),
             seconds=40),
)  # fmt: skip

RETENTION_S = 25
BIDIRECTIONAL = (
    Incident("conversations", "nothing", converse("conversation", 12, 600, 1.0), seconds=30, stay=True),
    Incident(
        "expired retention", f"the next turn comes after the {RETENTION_S} s for which D keeps blocks",
        converse("expired-retention", 24, 400, RETENTION_S + 5.0), ("KvlensReadbackFailing",), seconds=45,
    ),
    Incident(
        "full cache", "conversations fill D's cache", converse("full-cache", 40, 600, 6.0, rate=1.5),
        # Late turns and waiting prompts come with it.
        ("KvlensRetentionPressure",), ("KvlensLeaseOverdue", "KvlensReadbackFailing", "KvlensDecodeWaitStuck"),
        seconds=60,
    ),
)  # fmt: skip

TCP = (
    Incident("slow transport", "the pair was restarted with UCX_TLS=tcp", long_prompts, ("KvlensTransferRateLow",),
             seconds=50),
)  # fmt: skip

SETTLE_S = 4.0
"""Seconds after the last alert, so that graphs show it."""

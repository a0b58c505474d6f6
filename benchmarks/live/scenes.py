"""Play the incidents of one mode on one pair, and note when each began and ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.run import Pair

from .collector import Collector
from .incidents import BIDIRECTIONAL, PULL, PUSH, RETENTION_S, SETTLE_S, TCP, Incident, Scene
from .monitor import Monitor
from .profile import LEASE_S

Say = Callable[[str], None]
QUIET_S = 30


@dataclass(frozen=True)
class Act:
    """A pair and its incidents.

    cluster: label under which it is scraped. settings: of the pair.
    """

    cluster: str
    mode: str
    incidents: Sequence[Incident]
    settings: dict[str, Any]


# Few blocks, so that a dozen conversations fill the cache.
SMALL_CACHE = ("--num-gpu-blocks-override", "400")
ACTS = {
    "pull": Act("lab-pull", "pull", PULL, {"extra_config": {"kv_lease_duration": LEASE_S}}),
    "push": Act("lab-push", "push", PUSH, {"extra_config": {"kv_lease_duration": LEASE_S}}),
    "bidirectional": Act(
        "lab-bidirectional", "bidirectional", BIDIRECTIONAL,
        {
            "extra_config": {"kv_lease_duration": LEASE_S, "decoder_kv_blocks_ttl": RETENTION_S},
            "arguments": SMALL_CACHE,
        },
    ),
    "tcp": Act(
        "lab-pull", "pull", TCP, {"extra_config": {"kv_lease_duration": LEASE_S}, "env": {"UCX_TLS": "tcp"}}
    ),
}  # fmt: skip


def play(act: Act, out: Path, monitor: Monitor, say: Say) -> Iterator[dict[str, Any]]:
    """Start the pair, play all incidents in turn, and yield of each what happened when (Unix seconds)."""
    collector = Collector()
    settings = {**act.settings, "env": {**act.settings.get("env", {}), **collector.environment}}
    with ExitStack() as stack:
        stack.callback(collector.close)
        pair = stack.enter_context(Pair(act.mode, out=out, progress=say, **settings))
        pair.warm_up((200, 800))
        monitor.watch(pair, act.cluster)
        stack.callback(monitor.forget)
        time.sleep(2)
        scene = Scene(pair, monitor, collector)
        for incident in act.incidents:
            yield play_one(incident, scene, act, say)


def play_one(incident: Incident, scene: Scene, act: Act, say: Say) -> dict[str, Any]:
    """Play one incident until its alerts fire or its time is over.

    What fires from before would prove nothing, so its alerts are waited for to end first.
    """
    quiet_by = time.time() + QUIET_S
    while set(incident.alerts) & scene.monitor.find_firing(act.cluster) and time.time() < quiet_by:
        time.sleep(1)
    began = time.time()
    say(f"{act.cluster}: {incident.name}")
    with ExitStack() as scene.stack:
        incident.begin(scene)
        while time.time() - began < incident.seconds:
            time.sleep(0.5)
            if not incident.stay and set(incident.alerts) <= scene.monitor.find_firing(act.cluster):
                time.sleep(SETTLE_S)
                break
    scene.pair.clear_faults()
    time.sleep(1)
    return {
        "cluster": act.cluster, "mode": act.mode, "name": incident.name, "story": incident.story,
        "alerts": list(incident.alerts), "also": list(incident.also), "began": began, "ended": time.time(),
        "run": str(scene.pair.out),
    }  # fmt: skip


def keep(phase: dict[str, Any], path: Path) -> None:
    """Add a phase to the record of a folder."""
    before = json.loads(path.read_text(encoding="utf-8"))["phases"] if path.exists() else []
    document = {"schema": 1, "phases": [*before, phase]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

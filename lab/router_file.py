"""The router's configuration file, as a pair writes it and `lab.router` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .engine import EngineSpec
from .legs import Peer
from .ports import HOST


@dataclass(frozen=True)
class RouterFile:
    """What a pair decides of its router: mode, port, folder of its traces, fault file, routing (see RouterConfig)."""

    mode: str
    port: int
    traces: Path
    fault_file: Path | None
    routing: Mapping[str, Any]


def write_router_config(path: Path, router: RouterFile, specs: Sequence[EngineSpec]) -> None:
    """Write the configuration of a router in front of engines: P first, then the decoders."""
    peers = [asdict(Peer(spec.id, spec.url, HOST, spec.side_channel_port, spec.tensor_parallel)) for spec in specs]
    config = {
        "mode": router.mode,
        "port": router.port,
        "prefill": peers[:1],
        "decode": peers[1:],
        "traces": str(router.traces),
        "fault_file": str(router.fault_file) if router.fault_file else None,
        **router.routing,
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

"""Check that ports are free before an engine spends a minute to find out, and pick free ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import PortTakenError

HOST = "127.0.0.1"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether nothing listens on the TCP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it a port in TIME_WAIT from the run before would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def require_free(port: int, purpose: str) -> int:
    """Return the port, or raise PortTakenError that names what it was wanted for."""
    if not is_free(port):
        raise PortTakenError(port, purpose)
    return port


def pick_free(count: int, avoid: Iterable[int] = ()) -> list[int]:
    """Return distinct free ports, chosen at random, none of them in `avoid`.

    They lie outside the range from which the kernel serves outgoing connections and binds to port 0: a port of that
    range may be taken by anyone, vLLM's own sockets included, in the seconds until the engine binds it.
    """
    taken = set(avoid)
    candidates = [port for port in _quiet_ports() if port not in taken]
    ports: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(ports) == count:
            break
        if is_free(port):
            ports.append(port)
    return ports


def _quiet_ports() -> Iterator[int]:
    """Yield the unprivileged ports that the kernel never gives out by itself."""
    try:
        low, high = (int(one) for one in EPHEMERAL.read_text().split())
    except OSError:
        low, high = 32768, 60999  # Linux's default
    yield from (port for port in range(10_000, 65_536) if not low <= port <= high)


def choose_port(wanted: int | None, purpose: str, avoid: Iterable[int] = ()) -> int:
    """Return `wanted` if it is free, or any free port when none is wanted."""
    return pick_free(1, avoid)[0] if wanted is None else require_free(wanted, purpose)

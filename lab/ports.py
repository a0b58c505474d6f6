"""Check that ports are free before an engine spends a minute to find out, and pick free ones."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from .errors import PortTakenError

HOST = "127.0.0.1"


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
    """Return distinct free ports, chosen by the kernel, none of them in `avoid`."""
    taken = set(avoid)
    held: list[socket.socket] = []
    ports: list[int] = []
    try:
        # All sockets stay open until the last is chosen, else the kernel may hand out one port twice.
        while len(ports) < count:
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(holder)
            holder.bind((HOST, 0))
            port = int(holder.getsockname()[1])
            if port not in taken:
                ports.append(port)
    finally:
        for holder in held:
            holder.close()
    return ports


def choose_port(wanted: int | None, purpose: str, avoid: Iterable[int] = ()) -> int:
    """Return `wanted` if it is free, or any free port when none is wanted."""
    return pick_free(1, avoid)[0] if wanted is None else require_free(wanted, purpose)

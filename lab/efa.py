"""Sample the host's EFA counters into the run while a workload runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from exporters.efa.samples import SampleWriter
from exporters.efa.sysfs import EfaReader

INTERVAL_S = 0.05
"""Transfers take milliseconds, and the kernel has a new reading every 10 ms; 16 devices cost some 2 ms of CPU each."""


@contextmanager
def sample_efa(run: Path, root: Path, say: Callable[[str], None], interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Write RUN/efa/HOST.jsonl for as long as the block runs; without an EFA device say so, and write nothing.

    The first sample is taken before the block and the last one after it, so that every transfer lies between two. The
    name is that of the spans' host.name. What goes wrong with the samples is said and does not end the workload.
    """
    reader = EfaReader(root)
    if not reader.inventory.refresh():
        say(f"no EFA device below {reader.inventory.folder}: no samples are taken")
        yield
        return
    stop, ready = threading.Event(), threading.Event()
    path = run / "efa" / f"{socket.gethostname()}.jsonl"

    def write() -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                writer = SampleWriter(reader, file)
                writer.write_pass()
                ready.set()
                writer.run(interval_s, stop)
                if stop.is_set():
                    writer.write_pass()
        except OSError as error:
            say(f"no more EFA samples: {error}")
        finally:
            ready.set()

    thread = threading.Thread(target=write, name="efa-samples", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()

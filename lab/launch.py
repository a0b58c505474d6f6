"""Start a command with a core, a priority and a parent to die with: ``python -m lab.launch --cores 0 --nice 5 -- CMD``.

A small launcher instead of subprocess's ``preexec_fn``, which is not safe in a process that has threads.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def launch(argv: Sequence[str]) -> None:
    """Set affinity, priority and parent-death signal of this process, then become the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.launch")
    parser.add_argument("--cores", default="", help="comma-separated cores; all when empty")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True, help="process to die with")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    pin_to_cores(options.cores)
    if options.nice:
        os.nice(options.nice)
    os.execvp(options.command[0], options.command)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends; exit at once if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            raise SystemExit("the process that started this one has ended")


def pin_to_cores(cores: str) -> None:
    """Keep this process on the given cores, as far as it may use them."""
    if cores and hasattr(os, "sched_setaffinity"):
        wanted = {int(core) for core in cores.split(",")} & os.sched_getaffinity(0)
        if wanted:
            os.sched_setaffinity(0, wanted)


if __name__ == "__main__":
    launch(sys.argv[1:])

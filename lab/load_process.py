"""Run the load generator's process and follow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import ProcessDiedError
from .loadgen import Record
from .process import read_tail


def run_load_generator(command: Sequence[str], log: Path, on_record: Callable[[Record], None]) -> list[Record]:
    """Run the load generator's process and return its records; it ends with this call, also on an exception."""
    launched = [sys.executable, "-m", "lab.launch", "--parent", str(os.getpid()), "--", *command]
    with log.open("ab") as errors:
        # A session of its own: on Ctrl-C the lab ends it, instead of both at once.
        process = subprocess.Popen(
            launched, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    records: list[Record] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            record = json.loads(line)
            records.append(record)
            on_record(record)
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code:
        raise ProcessDiedError("load generator", f"ended with exit status {code}", log, read_tail(log))
    return records

"""A process that records, forks, and records on both sides; run by test_pipeline_fork as `fork_engine.py early|late`.

early: the parent exports before it forks, so that its exporters' threads and connections exist. Prints one line per
process: its pid, what became of its spans.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

from instrumented_connectors import events
from instrumented_connectors import runtime as runtime_module
from instrumented_connectors.runtime import EngineIdentity, Runtime, get_runtime
from instrumented_connectors.settings import Settings


def handshake(runtime: Runtime, count: int) -> None:
    for number in range(count):
        now = perf_counter_ns()
        runtime.recorder.record((events.HANDSHAKE, now, now + 1, f"peer-{os.getpid()}-{number}", "", False))


def finish(runtime: Runtime) -> None:
    runtime.close()
    counts = {name: (c.exported, c.lost, c.queued) for name, c in runtime.pipeline.counters().items()}
    # One write: both processes share the pipe.
    os.write(1, f"{os.getpid()} {runtime.pipeline.produced} {counts}\n".encode())


def main() -> None:
    # Asking vLLM for its version imports all of it.
    runtime_module.vllm_version = lambda: ""
    runtime = get_runtime(EngineIdentity("P0", "prefill", "push"), Settings.from_env())
    handshake(runtime, 3)
    if sys.argv[1] == "early":
        runtime.assembler.drain()
        assert runtime.pipeline.flush(10)
    child = os.fork()
    handshake(runtime, 20)
    finish(runtime)
    if child:
        os.waitpid(child, 0)
    else:
        os._exit(0)


if __name__ == "__main__":
    main()

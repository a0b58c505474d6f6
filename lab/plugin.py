"""vLLM general plugin of the lab: does nothing unless KVLENS_LAB=1.

It makes two engines with busy threads share two cores (see the comments), and installs the faults. vLLM loads it in
every process of an engine before it builds a connector.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

# NIXL's progress thread sleeps this long between two looks (us). Its Python binding sets 0, which spins a whole core.
PROGRESS_DELAY_US = 1000
_YIELD_S = 100e-6


def register() -> None:
    """Install the lab's changes in this process, once."""
    if os.environ.get("KVLENS_LAB") != "1":
        return
    _move_to_host()
    # What an engine that no longer answers is doing: `kill -USR1` writes the stacks of all its threads into its log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _replace_sched_yield()
    _slow_progress_thread()
    _leave_cores_alone()
    _keep_start_method()
    if os.environ.get("KVLENS_LAB_STREAM_PARAMS") == "1":
        from .stream_params import install_stream_params

        install_stream_params()
    if os.environ.get("KVLENS_LAB_READBACK_ONCE") == "1":
        from .stock_fixes import install_readback_once

        install_readback_once()
    if path := os.environ.get("KVLENS_LAB_CACHE_USAGE"):
        from .cache_usage import install_cache_usage

        install_cache_usage(Path(path), os.environ["KVLENS_LAB_ENGINE"])
    if os.environ.get("KVLENS_LAB_FAULT_FILE"):
        from .fault_sites import install_fault_sites
        from .faults import FaultFile

        install_fault_sites(FaultFile.from_environment())


def _move_to_host() -> None:
    """Give this process the clocks of the host that it pretends to live on; first, before anything reads a clock."""
    from .host_clock import OtherHost

    if host := OtherHost.from_environment(os.environ):
        from .other_host import move_to_host

        move_to_host(host)


def _replace_sched_yield() -> None:
    """Sleep where vLLM's shared-memory readers yield.

    They spin on it for 1 s after every message. On Linux 6.18 that starves the other threads of the process
    (handshakes of 30 s). Setting the busy time to 0 instead loses wake-ups (stalls of 5 s).
    """
    from vllm.distributed import utils
    from vllm.distributed.device_communicators import shm_broadcast

    def sched_yield() -> None:
        time.sleep(_YIELD_S)

    utils.sched_yield = sched_yield
    shm_broadcast.sched_yield = sched_yield


def _slow_progress_thread() -> None:
    """Keep NIXL's progress thread from spinning: the delay that its binding sets is raised before an agent is made."""
    # Through vLLM's own loader, which sets UCX's environment before the library is loaded.
    from vllm.distributed import nixl_utils

    agent = nixl_utils.NixlWrapper
    if agent is None:
        return
    bindings = sys.modules[agent.__module__].nixlBind
    stock = bindings.nixlAgentConfig
    if getattr(stock, "kvlens_lab", False):
        return

    class LabAgentConfig(stock):  # type: ignore[misc, valid-type]
        kvlens_lab = True

        @property
        def pthrDelay(self) -> int:
            return int(stock.pthrDelay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, delay_us: int) -> None:
            stock.pthrDelay.__set__(self, max(delay_us, PROGRESS_DELAY_US))

    bindings.nixlAgentConfig = LabAgentConfig


def _leave_cores_alone() -> None:
    """Keep the thread that computes on the core that the lab gave its engine.

    vLLM's NIXL worker on CPU moves it to the last core of the NUMA node (base_worker.py, "reserve different cores"),
    which is the same one for every engine: P and D would compute on one core and wait for each other there.
    """
    from vllm.platforms import current_platform

    type(current_platform).discover_numa_topology = classmethod(lambda cls: [])


def _keep_start_method() -> None:
    """Let the lab say how an engine starts its processes."""
    from .start_method import ENV_METHOD, keep_start_method

    if method := os.environ.get(ENV_METHOD):
        from vllm.platforms import current_platform

        keep_start_method(type(current_platform), method)

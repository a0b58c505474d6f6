"""OTLP JSON encoding of finished spans, as the collector's OTLP JSON file receiver reads it.

The mapping is the OTLP/JSON one (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): protobuf JSON with
ids in hexadecimal and enumerations as integers. It is built by hand because the detour over protobuf messages and
`MessageToDict` costs ten times as much; a test compares the two, document for document.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

# The collector's file receiver gives up on a line longer than 1 MiB (its max_log_size), so lines stay well below it.
MAX_LINE_CHARS = 512 * 1024

# OTLP's span flags: bit 8 says that bit 9 (the parent is remote) is known.
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring


def encode_lines(spans: Iterable[ReadableSpan]) -> Iterator[tuple[bytes, int]]:
    """Encode spans as OTLP JSON lines, one ExportTraceServiceRequest each.

    Yields (line with its newline, number of spans in it), in groups of one resource and scope. A span that cannot be
    encoded raises when its turn comes; text that is not valid Unicode is written with '?' in its place.
    """
    # By identity: hashing a Resource serialises its attributes, every time.
    groups: dict[tuple[int, int], list[ReadableSpan]] = {}
    for span in spans:
        groups.setdefault((id(span.resource), id(span.instrumentation_scope)), []).append(span)
    for members in groups.values():
        head, tail = _encode_envelope(members[0])
        for texts in _split_by_size([encode_span(span) for span in members]):
            yield (head + ",".join(texts) + tail).encode("utf-8", "replace"), len(texts)


def encode_span(span: ReadableSpan) -> str:
    """Encode one span as OTLP JSON; fields that hold protobuf's default are left out, as protobuf does.

    The fields that every span has are formatted in place: an object per field and the JSON encoder's walk through them
    cost five times as much, on a thread that shares the interpreter with the engine.
    """
    context, parent = span.get_span_context(), span.parent
    parts = []
    if context is not None:
        parts.append(f'"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"')
        if context.trace_state:
            state = ",".join(f"{key}={value}" for key, value in context.trace_state.items())
            parts.append(f'"traceState":{_quote(state)}')
    if parent is not None:
        parts.append(f'"parentSpanId":"{parent.span_id:016x}"')
    parts.append(f'"flags":{_flags(parent)},"name":{_quote(span.name)},"kind":{span.kind.value + 1}')
    if span.start_time:
        parts.append(f'"startTimeUnixNano":"{span.start_time}"')
    if span.end_time:
        parts.append(f'"endTimeUnixNano":"{span.end_time}"')
    if span.attributes:
        pairs = ",".join([_encode_pair(key, value) for key, value in span.attributes.items()])
        parts.append(f'"attributes":[{pairs}]')
    parts += [f'"{name}":{_encode(value)}' for name, value in _list_rare_fields(span).items() if value]
    status = span.status
    code, message = status.status_code.value, status.description
    parts.append(f'"status":{_encode(_only_set(message=message, code=code))}' if code or message else '"status":{}')
    return "{" + ",".join(parts) + "}"


def _encode_pair(key: str, value: Any) -> str:
    kind = type(value)
    if kind is str:
        return f'{{"key":{_quote(key)},"value":{{"stringValue":{_quote(value)}}}}}'
    if kind is int:
        return f'{{"key":{_quote(key)},"value":{{"intValue":"{value}"}}}}'
    return f'{{"key":{_quote(key)},"value":{_encode(build_value(value))}}}'


def _list_rare_fields(span: ReadableSpan) -> dict[str, Any]:
    return {
        "droppedAttributesCount": span.dropped_attributes,
        "events": [_build_event(event) for event in span.events],
        "droppedEventsCount": span.dropped_events,
        "links": [_build_link(link) for link in span.links],
        "droppedLinksCount": span.dropped_links,
    }


def build_attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Build OTLP's list of key-value objects."""
    return [{"key": key, "value": build_value(value)} for key, value in (attributes or {}).items()]


def build_value(value: Any) -> dict[str, Any]:
    """Build OTLP's AnyValue; integers become strings, as 64 bits do not fit a JSON number. Raises TypeError."""
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _name_of_non_finite(value)}
    return _build_rare_value(value)


def _build_rare_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        pairs = [{"key": str(key), "value": build_value(inner)} for key, inner in value.items()]
        return {"kvlistValue": {"values": pairs} if pairs else {}}
    if isinstance(value, Sequence):
        return {"arrayValue": {"values": [build_value(inner) for inner in value]} if value else {}}
    raise TypeError(f"OTLP has no value for {type(value).__name__}")


def _name_of_non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _encode_envelope(span: ReadableSpan) -> tuple[str, str]:
    """Encode what goes before and after the spans of one resource and scope."""
    resource, scope = span.resource, span.instrumentation_scope
    resource_text = _encode(_only_set(attributes=build_attributes(resource.attributes)))
    scope_text = _encode(_build_scope(scope))
    head = f'{{"resourceSpans":[{{"resource":{resource_text},"scopeSpans":[{{"scope":{scope_text},"spans":['
    scope_schema = _schema_field(scope.schema_url if scope else None)
    return head, f"]{scope_schema}}}]{_schema_field(resource.schema_url)}}}]}}\n"


def _build_scope(scope: InstrumentationScope | None) -> dict[str, Any]:
    if scope is None:
        return {}
    return _only_set(name=scope.name, version=scope.version, attributes=build_attributes(scope.attributes))


def _schema_field(url: str | None) -> str:
    return f',"schemaUrl":{_encode(url)}' if url else ""


def _split_by_size(texts: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > MAX_LINE_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text) + 1
    if batch:
        yield batch


def _build_event(event: Event) -> dict[str, Any]:
    return _only_set(
        timeUnixNano=str(event.timestamp) if event.timestamp else None,
        name=event.name,
        attributes=build_attributes(event.attributes),
        droppedAttributesCount=event.dropped_attributes,
    )


def _build_link(link: Link) -> dict[str, Any]:
    return _only_set(
        traceId=f"{link.context.trace_id:032x}",
        spanId=f"{link.context.span_id:016x}",
        attributes=build_attributes(link.attributes),
        droppedAttributesCount=link.dropped_attributes,
        flags=_flags(link.context),
    )


def _flags(parent: SpanContext | None) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if parent is not None and parent.is_remote else 0)


def _only_set(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}

-- Read length-delimited (varint) protobuf ExportTraceServiceRequests into otel_traces, row for row as import_otlp_json.sql
-- does: ids in hexadecimal, attribute values as text. Field numbers are those of opentelemetry-proto 1.x; nested arrays and
-- key-value lists are left empty (no span of ours has them).
INSERT INTO {table:Identifier}
WITH
    -- AnyValue is a oneof, so that what is NULL was not there.
    scalar -> coalesce(scalar.string_value, toString(scalar.int_value), toString(scalar.double_value),
        toString(scalar.bool_value), base64Encode(scalar.bytes_value)) AS to_text,
    scalar -> if(isNull(scalar.string_value), to_text(scalar), toJSONString(assumeNotNull(scalar.string_value))) AS to_element,
    values -> if(empty(values), '', concat('[', arrayStringConcat(arrayMap(e -> coalesce(to_element(e), 'null'), values), ','), ']'))
        AS to_array,
    attributes -> mapFromArrays(
        arrayMap(kv -> kv.key, attributes),
        arrayMap(kv -> coalesce(to_text(kv.value), to_array(kv.value.array_value.values)), attributes)
    ) AS to_map,
    scopes AS (
        SELECT to_map(rs.resource.attributes) AS resource, /* parts/resource_columns.sql */, arrayJoin(rs.scope_spans) AS sc
        FROM (
            SELECT arrayJoin(resource_spans) AS rs
            FROM file({path:String}, 'Protobuf', 'resource_spans Array(Tuple(
                resource Tuple(attributes /* parts/protobuf_attributes.sql */),
                scope_spans Array(Tuple(
                    scope Tuple(name String, version String),
                    spans Array(Tuple(
                        trace_id String, span_id String, trace_state String, parent_span_id String, name String, kind Int32,
                        start_time_unix_nano Int64, end_time_unix_nano Int64,
                        attributes /* parts/protobuf_attributes.sql */,
                        events Array(Tuple(time_unix_nano Int64, name String, attributes /* parts/protobuf_attributes.sql */)),
                        links Array(Tuple(
                            trace_id String, span_id String, trace_state String,
                            attributes /* parts/protobuf_attributes.sql */)),
                        status Tuple(message String, code Int32)))))))')
        )
    )
SELECT
    fromUnixTimestamp64Nano(s.start_time_unix_nano),
    lower(hex(s.trace_id)),
    lower(hex(s.span_id)),
    lower(hex(s.parent_span_id)),
    s.trace_state,
    s.name,
    transform(s.kind, [1, 2, 3, 4, 5], ['Internal', 'Server', 'Client', 'Producer', 'Consumer'], 'Unspecified'),
    service,
    resource,
    scope_name,
    scope_version,
    to_map(s.attributes),
    toUInt64(s.end_time_unix_nano - s.start_time_unix_nano),
    transform(s.status.code, [1, 2], ['Ok', 'Error'], 'Unset'),
    s.status.message,
    arrayMap(e -> fromUnixTimestamp64Nano(e.time_unix_nano), s.events),
    arrayMap(e -> e.name, s.events),
    arrayMap(e -> to_map(e.attributes), s.events),
    arrayMap(l -> lower(hex(l.trace_id)), s.links),
    arrayMap(l -> lower(hex(l.span_id)), s.links),
    arrayMap(l -> l.trace_state, s.links),
    arrayMap(l -> to_map(l.attributes), s.links),
    Resource_service_instance_id, Resource_process_pid, Resource_kvlens_role, Resource_kvlens_mode,
    Resource_kvlens_clock_boot_id, Resource_kvlens_clock_anchor_unix_ns, Resource_kvlens_clock_anchor_perf_ns, Resource_process,
    0
FROM (
    -- Named one by one: what is not there is not copied for every span.
    SELECT
        resource, service, sc.scope.name AS scope_name, sc.scope.version AS scope_version,
        Resource_service_instance_id, Resource_process_pid, Resource_kvlens_role, Resource_kvlens_mode,
        Resource_kvlens_clock_boot_id, Resource_kvlens_clock_anchor_unix_ns, Resource_kvlens_clock_anchor_perf_ns, Resource_process,
        arrayJoin(sc.spans) AS s
    FROM scopes
)
SETTINGS format_schema_source = 'string', format_schema_message_name = 'Request', format_schema = 'syntax = "proto3";
    message ArrayValue { repeated AnyValue values = 1; }
    message AnyValue { oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3; double double_value = 4; ArrayValue array_value = 5; bytes bytes_value = 7; } }
    message KeyValue { string key = 1; AnyValue value = 2; }
    message Resource { repeated KeyValue attributes = 1; }
    message Scope { string name = 1; string version = 2; }
    message Status { string message = 2; int32 code = 3; }
    message Event { fixed64 time_unix_nano = 1; string name = 2; repeated KeyValue attributes = 3; }
    message Link { bytes trace_id = 1; bytes span_id = 2; string trace_state = 3; repeated KeyValue attributes = 4; }
    message Span { bytes trace_id = 1; bytes span_id = 2; string trace_state = 3; bytes parent_span_id = 4; string name = 5; int32 kind = 6; fixed64 start_time_unix_nano = 7; fixed64 end_time_unix_nano = 8; repeated KeyValue attributes = 9; repeated Event events = 11; repeated Link links = 13; Status status = 15; }
    message ScopeSpans { Scope scope = 1; repeated Span spans = 2; }
    message ResourceSpans { Resource resource = 1; repeated ScopeSpans scope_spans = 2; }
    message Request { repeated ResourceSpans resource_spans = 1; }'

-- Read OTLP JSON lines (one ExportTraceServiceRequest per line, as a collector's file exporter writes them too) into a table
-- like kvlens_arriving, as the collector's ClickHouse exporter would: attribute values as text, Duration in ns (a span that
-- ends before it starts wraps around, there as here). A line that is not JSON gives no rows;
-- count_lines.sql counts those.
INSERT INTO {table:Identifier}
WITH
    'Array(Tuple(key String, value Map(String, String)))' AS kv_type,
    replaceAll('Array(Tuple(resource Tuple(attributes KV), scopeSpans Array(Tuple(
        scope Tuple(name String, version String),
        spans Array(Tuple(traceId String, spanId String, parentSpanId String, traceState String, name String,
            kind Int8, startTimeUnixNano Int64, endTimeUnixNano Int64, attributes KV,
            status Tuple(code Int8, message String),
            events Array(Tuple(timeUnixNano Int64, name String, attributes KV)),
            links Array(Tuple(traceId String, spanId String, traceState String, attributes KV))))))))',
        'KV', kv_type) AS line_type,
    -- Arrays as the collector writes them, [1,2] and ["a","b"]; in OTLP JSON a whole number is text.
    element -> if(element.1 = 'intValue', trim(BOTH '"' FROM element.2), element.2) AS to_element,
    array -> if(array = '', '', concat('[', arrayStringConcat(arrayMap(
        e -> to_element(JSONExtractKeysAndValuesRaw(e)[1]), JSONExtractArrayRaw(array, 'values')), ','), ']')
    ) AS to_array,
    -- An AnyValue is an object of one member: its kind and its value.
    value -> if(mapContains(value, 'arrayValue'), to_array(mapValues(value)[1]), mapValues(value)[1]) AS to_text,
    attributes -> mapFromArrays(arrayMap(kv -> kv.1, attributes), arrayMap(kv -> to_text(kv.2), attributes)) AS to_map,
    scopes AS (
        SELECT
            number, to_map(rs.resource.attributes) AS resource, /* parts/resource_columns.sql */,
            arrayJoin(rs.scopeSpans) AS sc
        FROM (
            SELECT rowNumberInAllBlocks() AS number, arrayJoin(JSONExtract(line, 'resourceSpans', line_type)) AS rs
            FROM file({path:String}, 'LineAsString', 'line String')
        )
    )
SELECT
    fromUnixTimestamp64Nano(s.startTimeUnixNano),
    s.traceId,
    s.spanId,
    s.parentSpanId,
    s.traceState,
    s.name,
    transform(s.kind, [1, 2, 3, 4, 5], ['Internal', 'Server', 'Client', 'Producer', 'Consumer'], 'Unspecified'),
    service,
    resource,
    scope_name,
    scope_version,
    to_map(s.attributes),
    toUInt64(s.endTimeUnixNano - s.startTimeUnixNano),
    transform(s.status.code, [1, 2], ['Ok', 'Error'], 'Unset'),
    s.status.message,
    arrayMap(e -> fromUnixTimestamp64Nano(e.timeUnixNano), s.events),
    arrayMap(e -> e.name, s.events),
    arrayMap(e -> to_map(e.attributes), s.events),
    arrayMap(l -> l.traceId, s.links),
    arrayMap(l -> l.spanId, s.links),
    arrayMap(l -> l.traceState, s.links),
    arrayMap(l -> to_map(l.attributes), s.links),
    Resource_service_instance_id, Resource_process_pid, Resource_kvlens_role, Resource_kvlens_mode,
    Resource_kvlens_clock_boot_id, Resource_kvlens_clock_anchor_unix_ns, Resource_kvlens_clock_anchor_perf_ns, Resource_process,
    number
FROM (
    -- Named one by one: what is not there is not copied for every span.
    SELECT
        number, resource, service, sc.scope.name AS scope_name,
        sc.scope.version AS scope_version,
        Resource_service_instance_id, Resource_process_pid, Resource_kvlens_role, Resource_kvlens_mode,
        Resource_kvlens_clock_boot_id, Resource_kvlens_clock_anchor_unix_ns, Resource_kvlens_clock_anchor_perf_ns, Resource_process,
        arrayJoin(sc.spans) AS s
    FROM scopes
)

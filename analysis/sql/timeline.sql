-- The spans of chosen requests, for a timeline: those of the engine ids, the router's of the traces, and the handshakes.
-- ids, traces: JSON arrays of text (an array parameter is written differently by every client). Times are ns on the
-- re-based clock (see milestones.sql); registration_seen is NULL where the span has none.
WITH
    /* parts/clock_bases.sql */ AS bases,
    JSONExtract({ids:String}, 'Array(String)') AS ids,
    JSONExtract({traces:String}, 'Array(String)') AS traces
SELECT
    SpanName AS name,
    SpanId AS span_id,
    ParentSpanId AS parent_id,
    ResourceAttributes['service.name'] AS service,
    ResourceAttributes['service.instance.id'] AS engine,
    ResourceAttributes['kvlens.role'] AS role,
    ResourceAttributes['kvlens.mode'] AS mode,
    ResourceAttributes['host.name'] AS host,
    ResourceAttributes['kvlens.clock.boot_id'] AS boot,
    toInt64OrZero(ResourceAttributes['process.pid']) AS pid,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
        - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
    toUnixTimestamp64Nano(Timestamp) + shift AS begin,
    begin + toInt64(Duration) AS finish,
    SpanAttributes['kv_transfer.request_id'] AS request_id,
    SpanAttributes['kv_transfer.request_key'] AS request_key,
    SpanAttributes['kv_transfer.peer_request_id'] AS peer_request_id,
    SpanAttributes['kv_transfer.rank'] AS rank,
    SpanAttributes['kv_transfer.thread'] AS thread,
    nullIf(toInt64OrZero(SpanAttributes['kv_transfer.registration_seen_ns']), 0) + shift AS registration_seen,
    StatusCode = 'Error' AS is_error,
    mapKeys(SpanAttributes) AS attribute_names,
    mapValues(SpanAttributes) AS attribute_values
FROM {table:Identifier}
WHERE ScopeName = 'kvlens'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND (
        SpanName = 'handshake'
        OR has(ids, SpanAttributes['kv_transfer.request_id'])
        OR (startsWith(SpanName, 'router.') AND has(traces, TraceId))
    )
ORDER BY begin, finish DESC, span_id

-- What the router knew of a request's conversation: one row per request at a router that named one. Unix ns on the
-- re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    TraceId AS r_trace,
    SpanAttributes['kv_transfer.request_key'] AS r_key,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
        - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
    toUnixTimestamp64Nano(Timestamp) + shift AS r_start,
    nullIf(SpanAttributes['kv_transfer.conversation_id'], '') AS conversation_id,
    toInt64OrNull(SpanAttributes['kv_transfer.turn']) AS turn,
    nullIf(SpanAttributes['kv_transfer.readback_offered'], '') AS offered
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'router.request'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY r_start, r_trace

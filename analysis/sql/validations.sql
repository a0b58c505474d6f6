-- Transfer parameters that a scheduler found wrong before it acted on them: one row per finding, times in ns on the
-- re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    ResourceAttributes['service.instance.id'] AS engine,
    SpanAttributes['kv_transfer.request_id'] AS id,
    SpanAttributes['kv_transfer.request_key'] AS key,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
        - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
    toUnixTimestamp64Nano(Timestamp) + shift AS begin,
    begin + toInt64(Duration) AS finish,
    SpanAttributes['kv_transfer.reason'] AS reason,
    SpanAttributes['kv_transfer.field'] AS field
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'validation'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY begin, engine, id

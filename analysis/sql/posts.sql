-- Submissions of transfers (`post`) and the time that they were polled (`wire`): where they ran and for whom, in ns on the
-- re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    SpanName AS name,
    ResourceAttributes['service.instance.id'] AS engine,
    ResourceAttributes['kvlens.role'] AS role,
    ResourceAttributes['kvlens.mode'] AS mode,
    SpanAttributes['kv_transfer.rank'] AS rank,
    SpanAttributes['kv_transfer.thread'] AS thread,
    SpanAttributes['kv_transfer.direction'] AS direction,
    SpanAttributes['kv_transfer.request_id'] AS request_id,
    SpanAttributes['kv_transfer.request_key'] AS request_key,
    toInt64OrZero(SpanAttributes['kv_transfer.descriptors']) AS descriptors,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    toUnixTimestamp64Nano(Timestamp) + if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns'])
        - unix - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS begin,
    begin + toInt64(Duration) AS finish
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName IN ('post', 'wire')
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY engine, begin

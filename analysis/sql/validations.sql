-- Transfer parameters that a scheduler found wrong before it acted on them: one row per finding, times in ns on the
-- re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    /* parts/request_span.sql */,
    SpanAttributes['kv_transfer.reason'] AS reason,
    SpanAttributes['kv_transfer.field'] AS field
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'validation'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY begin, engine, id

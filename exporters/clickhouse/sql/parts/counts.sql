-- How many spans of each sort every boot has: ours are those of requests (records of steps and threads tell of none), and a
-- clock is impossible when the span starts before 2001 or after 2099, or lasts longer than 7 days (which is also what an end
-- before the start looks like in an unsigned Duration).
(
    SELECT
        toDate(Timestamp) AS day,
        ResourceAttributes['kvlens.clock.boot_id'] AS boot,
        ScopeName = 'kvlens' AND SpanName NOT IN ('step.batch', 'step.slow', 'threads.sample') AS ours,
        ours AND (Timestamp < toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            OR Timestamp >= toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            OR Duration > 604800000000000) AS impossible,
        ours AND startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-') AS warmup,
        ScopeName != 'kvlens' AS is_foreign,
        if(ours, toString(SpanName), '') AS name,
        count() AS n
    FROM {table:Identifier}
    GROUP BY day, boot, ours, impossible, warmup, is_foreign, name
)

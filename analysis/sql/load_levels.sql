-- How much of each kind was going on in an engine: one row per change, the level from then on (running sums).
-- held_blocks counts blocks of open leases; the other levels count requests, transfers per rank. Times in ns on the
-- re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            ResourceAttributes['service.instance.id'] AS engine,
            transform(toString(SpanName),
                ['lease', 'wire', 'prefill.queue', 'decode.admission', 'decode.queue', 'decode.remote_wait'],
                ['held_blocks', 'transfers_in_flight', 'queued_requests', 'queued_requests', 'queued_requests', 'awaiting_kv_requests'],
                '') AS level_name,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
                - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            if(SpanName = 'lease', toInt64OrZero(SpanAttributes['kv_transfer.blocks']), 1) AS amount
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens'
            AND level_name != ''
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
    ),
    changes AS (
        SELECT engine, level_name, at, sum(change) AS change
        FROM (SELECT engine, level_name, arrayJoin([(begin, amount), (finish, -amount)]) AS step, step.1 AS at, step.2 AS change FROM spans)
        GROUP BY engine, level_name, at
        HAVING change != 0
    )
SELECT
    engine, level_name, at,
    toInt64(sum(change) OVER (PARTITION BY engine, level_name ORDER BY at)) AS level
FROM changes
ORDER BY engine, level_name, at

-- Engines, and when the first and the last of their spans was heard; records of steps count, as an engine that only idles
-- has nothing else. Times are ns on the re-based clock (see milestones.sql).
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    ResourceAttributes['service.instance.id'] AS engine,
    any(ResourceAttributes['kvlens.role']) AS role,
    any(ResourceAttributes['kvlens.mode']) AS mode,
    min(begin) AS first_heard,
    max(finish) AS last_heard
FROM (
    SELECT
        ResourceAttributes,
        toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
        toUnixTimestamp64Nano(Timestamp) + if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns'])
            - unix - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS begin,
        begin + toInt64(Duration) AS finish
    FROM {table:Identifier}
    WHERE ScopeName = 'kvlens'
        AND ResourceAttributes['kvlens.role'] != 'router'
        AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
        AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
        AND Duration <= 604800000000000
)
GROUP BY engine
ORDER BY engine

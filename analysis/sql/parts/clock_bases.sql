-- Boot id -> what the earliest process of that boot adds to a monotonic stamp: processes of one boot share CLOCK_MONOTONIC,
-- so with this every one of them is put on one clock, whatever its own anchor said.
(
    SELECT mapFromArrays(groupArray(boot), groupArray(base))
    FROM (
        SELECT boot, argMin(perf - unix, perf) AS base
        FROM (
            SELECT DISTINCT
                ResourceAttributes['kvlens.clock.boot_id'] AS boot,
                toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) AS perf,
                toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix
            FROM {table:Identifier}
            WHERE ScopeName = 'kvlens' AND unix > 0
        )
        GROUP BY boot
    )
)

-- Boot id -> what the earliest process of that boot adds to a monotonic stamp: processes of one boot share CLOCK_MONOTONIC,
-- so with this every one of them is put on one clock, whatever its own anchor said.
(
    SELECT mapFromArrays(groupArray(boot), groupArray(base))
    FROM (
        SELECT toString(boot) AS boot, argMin(perf - unix, perf) AS base
        FROM /* parts/processes.sql */
        GROUP BY boot
    )
)

-- Every process that was heard: its boot and its clocks' anchor (ns). Grouped by the name, which the others determine: a
-- DISTINCT over all four takes five times as long.
(
    SELECT any(boot) AS boot, any(unix) AS unix, any(perf) AS perf, process
    FROM (
        SELECT
            ResourceAttributes['kvlens.clock.boot_id'] AS boot,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) AS perf,
            concat(boot, ' ', toString(unix), ' ', toString(perf)) AS process
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens'
    )
    GROUP BY process
    HAVING unix > 0
)

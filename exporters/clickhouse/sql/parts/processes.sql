-- Every process that was heard: its boot and its clocks' anchor (ns).
(
    SELECT DISTINCT
        ResourceAttributes['kvlens.clock.boot_id'] AS boot,
        toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
        toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) AS perf,
        concat(boot, ' ', toString(unix), ' ', toString(perf)) AS process
    FROM {table:Identifier}
    WHERE ScopeName = 'kvlens' AND unix > 0
)

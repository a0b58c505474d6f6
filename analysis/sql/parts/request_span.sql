-- Whose span it is and when, in ns on the re-based clock: columns of a query that has `bases` (parts/clock_bases.sql).
ResourceAttributes['service.instance.id'] AS engine,
    SpanAttributes['kv_transfer.request_id'] AS id,
    SpanAttributes['kv_transfer.request_key'] AS key,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
        - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
    toUnixTimestamp64Nano(Timestamp) + shift AS begin,
    begin + toInt64(Duration) AS finish

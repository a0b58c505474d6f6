-- The push writer's queues as the samples saw them: the deepest, the oldest, and the longest silence.
SELECT
    ResourceAttributes['service.instance.id'] AS engine,
    ResourceAttributes['kvlens.role'] AS role,
    SpanAttributes['kv_transfer.rank'] AS rank,
    count() AS samples,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_queue'])) AS max_queue,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_unmatched'])) AS max_unmatched,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_registrations'])) AS max_registrations,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_forwarded'])) AS max_forwarded,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_oldest_ns'])) AS max_oldest_ns,
    max(toInt64OrZero(SpanAttributes['kv_transfer.writer_heartbeat_ns'])) AS max_heartbeat_ns
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'threads.sample' AND SpanAttributes['kv_transfer.writer_heartbeat_ns'] != ''
GROUP BY engine, role, rank
ORDER BY engine, rank

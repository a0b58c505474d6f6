-- Transfers in flight (`wire`), one row per rank and post: on which host, for whom, from when to when, and what they moved.
--
-- Times are Unix ns of the span's own process, not re-based: EFA samples carry the host's wall clock, to which each process
-- is anchored once.
SELECT
    ResourceAttributes['host.name'] AS host,
    ResourceAttributes['service.instance.id'] AS engine,
    SpanAttributes['kv_transfer.rank'] AS rank,
    SpanAttributes['kv_transfer.direction'] AS direction,
    SpanAttributes['kv_transfer.outcome'] AS outcome,
    SpanAttributes['kv_transfer.request_id'] AS request_id,
    SpanAttributes['kv_transfer.request_key'] AS request_key,
    SpanAttributes['kv_transfer.peer_engine_id'] AS peer,
    toInt64OrZero(SpanAttributes['kv_transfer.bytes']) AS bytes,
    toUnixTimestamp64Nano(Timestamp) AS begin,
    greatest(begin, coalesce(
        nullIf(toInt64OrZero(SpanAttributes['kv_transfer.landed_before_ns']), 0), begin + toInt64(Duration))) AS finish
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'wire'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY begin, engine, rank

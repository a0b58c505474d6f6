-- Spans that tell of causes rather than of a request's path, flattened for the doctor: one row per span. Times are ns on
-- the re-based clock (see milestones.sql); numbers are NULL and texts empty where the span has no such attribute.
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    toString(SpanName) AS name,
    ResourceAttributes['service.instance.id'] AS engine,
    ResourceAttributes['kvlens.role'] AS role,
    ResourceAttributes['kvlens.mode'] AS mode,
    SpanAttributes['kv_transfer.request_id'] AS id,
    SpanAttributes['kv_transfer.request_key'] AS key,
    SpanAttributes['kv_transfer.rank'] AS rank,
    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
    if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
        - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
    toUnixTimestamp64Nano(Timestamp) + shift AS begin,
    begin + toInt64(Duration) AS finish,
    SpanAttributes['kv_transfer.outcome'] AS outcome,
    SpanAttributes['kv_transfer.reason'] AS reason,
    SpanAttributes['kv_transfer.cause'] AS cause,
    SpanAttributes['kv_transfer.failure_type'] AS failure_type,
    SpanAttributes['kv_transfer.error_type'] AS error_type,
    SpanAttributes['kv_transfer.peer_engine_id'] AS peer,
    SpanAttributes['kv_transfer.peer_request_id'] AS peer_id,
    SpanAttributes['kv_transfer.direction'] AS direction,
    SpanAttributes['kv_transfer.late_side'] AS late_side,
    SpanAttributes['kv_transfer.thread'] AS thread,
    toInt64OrNull(SpanAttributes['kv_transfer.late_ns']) AS late_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.bytes']) AS bytes,
    toInt64OrNull(SpanAttributes['kv_transfer.descriptors']) AS descriptors,
    toInt64OrNull(SpanAttributes['kv_transfer.landed_after_ns']) + shift AS landed_after,
    toInt64OrNull(SpanAttributes['kv_transfer.landed_before_ns']) + shift AS landed_before,
    toInt64OrNull(SpanAttributes['kv_transfer.nixl_xfer_us']) AS nixl_xfer_us,
    toInt64OrNull(SpanAttributes['kv_transfer.blocks']) AS blocks,
    toInt64OrNull(SpanAttributes['kv_transfer.heartbeats']) AS heartbeats,
    toInt64OrNull(SpanAttributes['kv_transfer.bound_ns']) AS bound_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.writer_oldest_ns']) AS writer_oldest_ns,
    toFloat64OrNull(SpanAttributes['kv_transfer.seconds_past_expiry']) AS seconds_past_expiry
FROM {table:Identifier}
WHERE ScopeName = 'kvlens'
    AND SpanName IN ('lease', 'failure', 'handshake', 'pairing', 'post', 'wire', 'registration.send', 'decision', 'step.slow', 'threads.sample')
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY begin, id, rank

-- Spans of requests as typed columns, computed from the collector's table. The fast path (exporters/clickhouse/sql/
-- kvlens_spans_mv.sql) stores the same columns when spans arrive, so that nobody looks into a Map any more; a query reads
-- from one or the other by the same text. Left out: other scopes, warm-up requests, records of steps and threads, and
-- impossible clocks (before 2001, after 2099, or longer than 7 days, which is also an end before the start).
-- own_begin, *_at: Unix ns of the span's own process, 0 where absent; numbers: -1 where absent; texts: ''.
(
    SELECT
        Timestamp,
        SpanName AS name,
        TraceId AS trace,
        SpanId AS span_id,
        ParentSpanId AS parent_id,
        ResourceAttributes['service.instance.id'] AS engine,
        ResourceAttributes['kvlens.role'] AS role,
        ResourceAttributes['kvlens.mode'] AS mode,
        ResourceAttributes['kvlens.clock.boot_id'] AS boot,
        toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
        toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) AS perf,
        concat(boot, ' ', toString(unix), ' ', toString(perf)) AS process,
        toUnixTimestamp64Nano(Timestamp) AS own_begin,
        toInt64(Duration) AS took,
        SpanAttributes['kv_transfer.request_id'] AS id,
        SpanAttributes['kv_transfer.request_key'] AS key,
        cityHash64(engine, id) AS leg,
        SpanAttributes['kv_transfer.rank'] AS rank,
        SpanAttributes['kv_transfer.outcome'] AS outcome,
        SpanAttributes['kv_transfer.direction'] AS direction,
        SpanAttributes['kv_transfer.thread'] AS thread,
        SpanAttributes['kv_transfer.finish_reason'] AS finish_reason,
        SpanAttributes['kv_transfer.peer_engine_id'] AS peer,
        SpanAttributes['kv_transfer.peer_request_id'] AS peer_id,
        SpanAttributes['kv_transfer.mode'] AS asked_mode,
        SpanAttributes['kv_transfer.status'] AS status,
        SpanAttributes['kv_transfer.error'] AS error,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.prompt_tokens']), -1) AS prompt_tokens,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.cached_tokens']), -1) AS cached_tokens,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.external_tokens']), -1) AS external_tokens,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.output_tokens']), -1) AS output_tokens,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.chunks']), -1) AS chunks,
        toInt64OrZero(SpanAttributes['kv_transfer.landed_after_ns']) AS landed_after_at,
        toInt64OrZero(SpanAttributes['kv_transfer.landed_before_ns']) AS landed_before_at,
        toInt64OrZero(SpanAttributes['kv_transfer.registration_seen_ns']) AS registration_seen_at,
        toInt64OrZero(SpanAttributes['kv_transfer.client_sent_ns']) AS client_sent_at,
        toInt64OrZero(SpanAttributes['kv_transfer.first_byte_ns']) AS first_byte_at,
        toInt64OrZero(SpanAttributes['kv_transfer.bytes']) AS bytes,
        toInt64OrZero(SpanAttributes['kv_transfer.descriptors']) AS descriptors,
        toInt64OrZero(SpanAttributes['kv_transfer.fetch_ns']) AS fetch_ns,
        coalesce(toInt64OrNull(SpanAttributes['kv_transfer.blocks']), -1) AS blocks
    FROM {table:Identifier}
    WHERE ScopeName = 'kvlens'
        AND SpanName NOT IN ('step.batch', 'step.slow', 'threads.sample')
        AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
        AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
        AND Duration <= 604800000000000
        AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
)

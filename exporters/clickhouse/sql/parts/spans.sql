-- Spans of requests as typed columns, computed from the collector's table. The fast path (exporters/clickhouse/sql/
-- kvlens_spans_mv.sql) stores the same columns when spans arrive, so that nobody looks into a Map any more; a query reads
-- from one or the other by the same text. Left out: other scopes, warm-up requests, records of steps and threads, and
-- impossible clocks (before 2001, after 2099, or longer than 7 days, which is also an end before the start).
-- own_begin, *_at: Unix ns of the span's own process, 0 where absent; numbers: -1 where absent; texts: ''.
(
    -- Every SpanAttributes['x'] would look through the whole Map again. So its keys become places in a list, once, as small
    -- numbers (0: none of these; a key that occurs twice counts where it is first, as in a Map).
    WITH
        [
            'request_id', 'request_key', 'rank', 'outcome', 'direction', 'thread', 'finish_reason', 'peer_engine_id',
            'peer_request_id', 'mode', 'status', 'error', 'prompt_tokens', 'cached_tokens', 'external_tokens',
            'output_tokens', 'chunks', 'landed_after_ns', 'landed_before_ns', 'registration_seen_ns',
            'client_sent_ns', 'first_byte_ns', 'bytes', 'descriptors', 'fetch_ns', 'blocks'
        ] AS names,
        arrayMap(n -> concat('kv_transfer.', n), names) AS keys,
        arrayMap(i -> toUInt8(i), arrayEnumerate(keys)) AS numbers,
        arrayMap(k -> transform(k, keys, numbers, toUInt8(0)), mapKeys(SpanAttributes)) AS places,
        mapValues(SpanAttributes) AS texts,
        n -> texts[indexOf(places, indexOf(names, n))] AS get
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
        get('request_id') AS id,
        get('request_key') AS key,
        cityHash64(engine, id) AS leg,
        get('rank') AS rank,
        get('outcome') AS outcome,
        get('direction') AS direction,
        get('thread') AS thread,
        get('finish_reason') AS finish_reason,
        get('peer_engine_id') AS peer,
        get('peer_request_id') AS peer_id,
        get('mode') AS asked_mode,
        get('status') AS status,
        get('error') AS error,
        coalesce(toInt64OrNull(get('prompt_tokens')), -1) AS prompt_tokens,
        coalesce(toInt64OrNull(get('cached_tokens')), -1) AS cached_tokens,
        coalesce(toInt64OrNull(get('external_tokens')), -1) AS external_tokens,
        coalesce(toInt64OrNull(get('output_tokens')), -1) AS output_tokens,
        coalesce(toInt64OrNull(get('chunks')), -1) AS chunks,
        toInt64OrZero(get('landed_after_ns')) AS landed_after_at,
        toInt64OrZero(get('landed_before_ns')) AS landed_before_at,
        toInt64OrZero(get('registration_seen_ns')) AS registration_seen_at,
        toInt64OrZero(get('client_sent_ns')) AS client_sent_at,
        toInt64OrZero(get('first_byte_ns')) AS first_byte_at,
        toInt64OrZero(get('bytes')) AS bytes,
        toInt64OrZero(get('descriptors')) AS descriptors,
        toInt64OrZero(get('fetch_ns')) AS fetch_ns,
        coalesce(toInt64OrNull(get('blocks')), -1) AS blocks
    FROM {table:Identifier}
    WHERE ScopeName = 'kvlens'
        AND SpanName NOT IN ('step.batch', 'step.slow', 'threads.sample')
        AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
        AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
        AND Duration <= 604800000000000
        AND NOT startsWith(key, 'warmup-')
)

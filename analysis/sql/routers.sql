-- One row per request at a router: its own times and those of its legs, which are its child spans. Unix ns on the
-- re-based clock (milestones.sql says how); client_sent is another process's stamp, kept at its distance from ours.
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            SpanName AS name,
            TraceId AS trace,
            if(SpanName = 'router.request', SpanId, ParentSpanId) AS request,
            ResourceAttributes['kvlens.clock.boot_id'] AS boot,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix - bases[boot]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            SpanAttributes AS a
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens' AND SpanName IN ('router.request', 'router.prefill', 'router.decode')
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
            AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
    )
SELECT
    trace AS r_trace,
    anyIf(a['kv_transfer.request_key'], name = 'router.request') AS r_key,
    nullIf(any(boot), '') AS r_boot,
    anyIf(a['kv_transfer.mode'], name = 'router.request') AS r_mode,
    nullIf(anyIf(a['kv_transfer.status'], name = 'router.request'), '') AS r_status,
    nullIf(anyIf(a['kv_transfer.error'], name = 'router.request'), '') AS r_error,
    nullIf(anyIf(toInt64OrZero(a['kv_transfer.prompt_tokens']), name = 'router.request'), 0) AS r_prompt_tokens,
    minOrNullIf(begin, name = 'router.request') AS r_start,
    maxOrNullIf(finish, name = 'router.request') AS r_end,
    maxOrNullIf(nullIf(toInt64OrZero(a['kv_transfer.client_sent_ns']), 0) + shift, name = 'router.request') AS r_client_sent,
    maxOrNullIf(nullIf(toInt64OrZero(a['kv_transfer.first_byte_ns']), 0) + shift, name = 'router.request') AS r_first_byte,
    minOrNullIf(begin, name = 'router.prefill') AS r_prefill_start,
    maxOrNullIf(finish, name = 'router.prefill') AS r_prefill_end,
    minOrNullIf(begin, name = 'router.decode') AS r_decode_start,
    minOrNullIf(nullIf(toInt64OrZero(a['kv_transfer.first_byte_ns']), 0) + shift, name = 'router.decode') AS r_decode_first
FROM spans
GROUP BY trace, request
HAVING r_start IS NOT NULL
ORDER BY r_start, r_trace

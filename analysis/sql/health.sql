-- What there is to analyse: kvlens spans and others, spans with impossible clocks, and which roles were heard.
-- A clock is impossible when the span starts before 2001 or after 2099, or lasts longer than 7 days (which is also what
-- an end before the start looks like in an unsigned Duration). Records of a process (steps, threads) tell of no request.
WITH
    Timestamp < toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
        OR Timestamp >= toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
        OR Duration > 604800000000000 AS impossible,
    ScopeName = 'kvlens' AND SpanName NOT IN ('step.batch', 'step.slow', 'threads.sample') AS ours,
    startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-') AS warmup
SELECT
    count() AS spans,
    countIf(ScopeName != 'kvlens') AS foreign_spans,
    countIf(ours AND impossible) AS impossible_spans,
    countIf(ours AND warmup) AS warmup_spans,
    countIf(ours AND NOT impossible AND NOT warmup) AS used_spans,
    countIf(ours AND NOT impossible AND NOT warmup AND startsWith(SpanName, 'prefill')) AS prefill_spans,
    countIf(ours AND NOT impossible AND NOT warmup AND startsWith(SpanName, 'decode')) AS decode_spans,
    countIf(ours AND NOT impossible AND NOT warmup AND SpanName = 'router.request') AS router_spans,
    countIf(ours AND NOT impossible AND NOT warmup AND SpanName = 'failure') AS failures,
    uniqExactIf(ResourceAttributes['kvlens.clock.boot_id'], ours) AS boots
FROM {table:Identifier}

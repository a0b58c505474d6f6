-- What the prefill engine decided for each request: fetch an earlier turn's KV or compute it again, on what grounds, and
-- what came of it. One row per decision; times in ns on the re-based clock (see milestones.sql), numbers NULL and texts
-- empty where the span does not say.
WITH
    /* parts/clock_bases.sql */ AS bases
SELECT
    /* parts/request_span.sql */,
    SpanAttributes['kv_transfer.decision'] AS decision,
    SpanAttributes['kv_transfer.reason'] AS reason,
    toInt64OrNull(SpanAttributes['kv_transfer.prompt_tokens']) AS prompt_tokens,
    toInt64OrNull(SpanAttributes['kv_transfer.remote_tokens']) AS remote_tokens,
    toInt64OrNull(SpanAttributes['kv_transfer.local_tokens']) AS local_tokens,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_tokens']) AS fetch_tokens,
    toInt64OrNull(SpanAttributes['kv_transfer.threshold']) AS threshold,
    toFloat64OrNull(SpanAttributes['kv_transfer.seconds_to_expiry']) AS seconds_to_expiry,
    SpanAttributes['kv_transfer.peer_engine_id'] AS peer,
    SpanAttributes['kv_transfer.peer_request_id'] AS peer_id,
    SpanAttributes['kv_transfer.prefix_match'] AS prefix_match,
    toInt64OrNull(SpanAttributes['kv_transfer.prefix_mismatch_block']) AS prefix_mismatch_block,
    toInt64OrNull(SpanAttributes['kv_transfer.prefix_blocks']) AS prefix_blocks,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_estimate_ns']) AS fetch_estimate_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_estimate_low_ns']) AS fetch_estimate_low_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_estimate_high_ns']) AS fetch_estimate_high_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_samples']) AS fetch_samples,
    toInt64OrNull(SpanAttributes['kv_transfer.fetch_ns']) AS fetch_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.recompute_estimate_ns']) AS recompute_estimate_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.recompute_estimate_low_ns']) AS recompute_estimate_low_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.recompute_estimate_high_ns']) AS recompute_estimate_high_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.recompute_samples']) AS recompute_samples,
    toInt64OrNull(SpanAttributes['kv_transfer.recompute_ns']) AS recompute_ns,
    toInt64OrNull(SpanAttributes['kv_transfer.regret_ns']) AS regret_ns
FROM {table:Identifier}
WHERE ScopeName = 'kvlens' AND SpanName = 'decision'
    AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
    AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
    AND Duration <= 604800000000000
    AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
ORDER BY finish, engine, id

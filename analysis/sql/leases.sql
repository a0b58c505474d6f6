-- Blocks held on every engine, one row per holding: leases with their reason, and requests while they run (reason
-- `running`, whose blocks grow: block_ns is the integral). Warm-up requests are marked, as they hold blocks too. Times are
-- ns on the re-based clock (see milestones.sql); reads are the transfers that other engines (or push itself) made of the
-- blocks, same_clock says whether the reader shares the holder's clock.
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            SpanName AS name,
            ResourceAttributes['service.instance.id'] AS engine,
            ResourceAttributes['kvlens.role'] AS role,
            ResourceAttributes['kvlens.mode'] AS mode,
            ResourceAttributes['kvlens.clock.boot_id'] AS boot,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix - bases[boot]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            SpanAttributes AS a
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens'
            AND SpanName IN ('lease', 'prefill', 'decode', 'post', 'wire')
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
    )
SELECT
    engine, id, key, role, mode, reason, blocks, bytes, begin, finish, outcome, heartbeats, ttl_ns, last_heartbeat_ns,
    block_ns, block_size, finish_reason, is_warmup, has_peer, read_begin, read_end, boot = read_boot AS same_clock
FROM (
    SELECT
        engine, a['kv_transfer.request_id'] AS id, a['kv_transfer.request_key'] AS key, role, mode, boot,
        multiIf(name != 'lease', 'running', a['kv_transfer.reason'] != '', a['kv_transfer.reason'],
            role = 'decode', 'awaiting_next_turn', 'finished_awaiting_transfer') AS reason,
        toInt64OrNull(if(name = 'lease', a['kv_transfer.blocks'], a['kv_transfer.blocks_peak'])) AS blocks,
        nullIf(toInt64OrZero(a['kv_transfer.bytes']), 0) AS bytes,
        begin, finish,
        a['kv_transfer.outcome'] AS outcome,
        toInt64OrNull(a['kv_transfer.heartbeats']) AS heartbeats,
        toInt64OrNull(a['kv_transfer.ttl_ns']) AS ttl_ns,
        nullIf(toInt64OrZero(a['kv_transfer.last_heartbeat_ns']), 0) + shift AS last_heartbeat_ns,
        if(name = 'lease', toInt64OrNull(a['kv_transfer.blocks']) * (finish - begin), toInt64OrNull(a['kv_transfer.block_ns'])) AS block_ns,
        toInt64OrNull(a['kv_transfer.block_size']) AS block_size,
        a['kv_transfer.finish_reason'] AS finish_reason,
        startsWith(key, 'warmup-') AS is_warmup,
        a['kv_transfer.peer_request_id'] != '' AS has_peer
    FROM spans
    WHERE name IN ('lease', 'prefill', 'decode')
) AS held
LEFT JOIN (
    -- Whose blocks a transfer moved: the other side's where they were read, its own where they were written.
    SELECT
        if(a['kv_transfer.direction'] = 'READ', a['kv_transfer.peer_engine_id'], engine) AS engine,
        if(a['kv_transfer.direction'] = 'READ', a['kv_transfer.peer_request_id'], a['kv_transfer.request_id']) AS id,
        any(boot) AS read_boot,
        min(begin) AS read_begin,
        maxOrNullIf(coalesce(nullIf(toInt64OrZero(a['kv_transfer.landed_before_ns']), 0) + shift, finish), name = 'wire') AS read_end
    FROM spans
    WHERE name IN ('post', 'wire') AND a['kv_transfer.outcome'] IN ('ok', '')
    GROUP BY engine, id
    HAVING id != ''
) AS reads USING (engine, id)
ORDER BY begin, engine, id, reason
SETTINGS join_use_nulls = 1

-- What a prefill engine read back from a decode engine (bidirectional), one row per request: when its blocks were
-- allocated (p_alloc), when its scheduler was told that the decode engine's KV is here (p_told), and between them the
-- transfer of the slowest rank. Times are Unix ns on the re-based clock (see milestones.sql), NULL where nobody saw them.
--
-- The scheduler's spans carry no rank and make the group of rank ''; a decision whose wait was lost stands in for it.
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            SpanName AS name,
            ResourceAttributes['service.instance.id'] AS engine,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
                - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            SpanAttributes AS a,
            SpanAttributes['kv_transfer.request_id'] AS id,
            nullIf(toInt64OrZero(SpanAttributes['kv_transfer.fetch_ns']), 0) AS fetch_ns
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens'
            AND SpanName IN ('prefill.remote_wait', 'decision', 'post', 'wire')
            AND ResourceAttributes['kvlens.role'] != 'decode'
            AND ResourceAttributes['kvlens.mode'] != 'push'
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
            AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
    ),

    -- A rank's read: of its wires the one that landed last, and the post that returned when it began.
    ranks AS (
        SELECT
            engine, id, a['kv_transfer.rank'] AS rank,
            coalesce(
                minOrNullIf(begin, name = 'prefill.remote_wait'),
                maxOrNullIf(finish, name = 'decision' AND fetch_ns IS NOT NULL)) AS alloc,
            coalesce(
                maxOrNullIf(finish, name = 'prefill.remote_wait'),
                maxOrNullIf(finish + fetch_ns, name = 'decision' AND fetch_ns IS NOT NULL)) AS told,
            anyIf(a['kv_transfer.outcome'], name = 'prefill.remote_wait') AS outcome,
            maxIf(a['kv_transfer.external_tokens'], name = 'prefill.remote_wait') AS tokens,
            maxIf(a['kv_transfer.blocks'], name = 'prefill.remote_wait') AS blocks,
            argMaxOrNullIf(
                (begin, toInt64OrZero(a['kv_transfer.landed_after_ns']) + shift,
                 toInt64OrZero(a['kv_transfer.landed_before_ns']) + shift, toInt64OrZero(a['kv_transfer.bytes']),
                 toInt64OrZero(a['kv_transfer.descriptors'])),
                finish, name = 'wire' AND a['kv_transfer.outcome'] IN ('ok', '')) AS wire,
            groupArrayIf((begin, finish), name = 'post') AS posts,
            arraySort(p -> abs(p.2 - coalesce(wire.1, 9000000000000000000)), posts)[1] AS post,
            anyIf(a['kv_transfer.peer_engine_id'], a['kv_transfer.peer_engine_id'] != '') AS peer
        FROM spans
        GROUP BY engine, id, rank
    )
SELECT
    engine AS p_engine, id AS p_id,
    max(alloc) AS p_alloc, max(told) AS p_told,
    nullIf(max(outcome), '') AS rb_outcome,
    toInt64OrNull(max(tokens)) AS rb_tokens,
    toInt64OrNull(max(blocks)) AS rb_blocks,
    uniqExactIf(rank, NOT empty(posts)) AS rb_ranks,
    argMax(
        (rank, peer, if(empty(posts), NULL, post.1), coalesce(wire.1, if(empty(posts), NULL, post.2)), wire.2, wire.3,
         wire.4, wire.5),
        (coalesce(wire.3, 0), post.2)) AS x,
    x.1 AS rb_rank, coalesce(nullIf(x.2, ''), max(peer)) AS rb_peer,
    x.3 AS p_post_start, x.4 AS p_post_end, x.5 AS p_landed_after, x.6 AS p_landed_done, x.7 AS rb_bytes,
    x.8 AS rb_descriptors
FROM ranks
GROUP BY engine, id
HAVING p_alloc IS NOT NULL OR p_post_start IS NOT NULL
ORDER BY p_engine, p_id

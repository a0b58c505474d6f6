-- One row per request attempt: when it passed each milestone, joined over router, prefill engine (p_), decode engine
-- (d_) and the slowest rank of its transfer (x_). Times are Unix ns on one re-based clock, NULL where nobody saw it.
--
-- Clocks: processes of one boot share CLOCK_MONOTONIC; each stamps t_unix = anchor_unix + (t_perf - anchor_perf) with an
-- anchor of its own, so `shift` puts them all on the earliest anchor of their boot. Boots are not aligned here.
-- Identity: P and D meet by request id (peer_request_id), which is unique per attempt; what is left (a killed engine's
-- half) meets as the n-th of its trace in time order. The router meets them by trace and key, else key, else trace.
WITH
    (
        SELECT mapFromArrays(groupArray(boot), groupArray(base))
        FROM (
            SELECT boot, argMin(perf - unix, perf) AS base
            FROM (
                SELECT DISTINCT
                    ResourceAttributes['kvlens.clock.boot_id'] AS boot,
                    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) AS perf,
                    toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix
                FROM {table:Identifier}
                WHERE ScopeName = 'kvlens' AND unix > 0
            )
            GROUP BY boot
        )
    ) AS bases,
    spans AS (
        SELECT
            SpanName AS name,
            TraceId AS trace,
            SpanId AS span_id,
            ParentSpanId AS parent_id,
            ResourceAttributes['service.instance.id'] AS engine,
            ResourceAttributes['kvlens.mode'] AS mode,
            ResourceAttributes['kvlens.clock.boot_id'] AS boot,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix - bases[boot]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            SpanAttributes AS a,
            a['kv_transfer.request_id'] AS id,
            a['kv_transfer.request_key'] AS key
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens'
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
            AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
    ),

    -- Prefill side, one row per request of an engine.
    p_all AS (
        SELECT
            engine AS p_engine, id AS p_id, any(trace) AS p_trace, any(key) AS p_key, any(mode) AS p_mode, any(boot) AS p_boot,
            min(begin) AS p_seen,
            minOrNullIf(begin, name IN ('prefill', 'prefill.queue')) AS p_start,
            coalesce(maxOrNullIf(finish, name = 'prefill.queue'), minOrNullIf(begin, name = 'prefill.compute')) AS p_sched,
            coalesce(
                maxOrNullIf(finish, name = 'prefill.compute'),
                maxOrNullIf(finish, name = 'prefill' AND NOT match(a['kv_transfer.finish_reason'], 'abort|error|ignored'))
            ) AS p_end,
            maxIf(toInt64OrZero(a['kv_transfer.prompt_tokens']), name = 'prefill') AS p_prompt_tokens,
            maxIf(toInt64OrZero(a['kv_transfer.cached_tokens']), name = 'prefill') AS cached_tokens,
            maxIf(toInt64OrZero(a['kv_transfer.chunks']), name IN ('prefill', 'prefill.compute')) AS chunks,
            anyIf(a['kv_transfer.finish_reason'], name = 'prefill') AS p_finish
        FROM spans
        WHERE name IN ('prefill', 'prefill.queue', 'prefill.compute')
        GROUP BY engine, id
    ),

    -- Decode side, one row per request of an engine (children of n > 1 are requests of their own).
    d_all AS (
        SELECT
            engine AS d_engine, id AS d_id, any(trace) AS d_trace, any(key) AS d_key, any(mode) AS d_mode, any(boot) AS d_boot,
            replaceRegexpOne(id, '^[0-9]+_', '') AS base_id,
            min(begin) AS d_seen,
            minOrNullIf(begin, name IN ('decode', 'decode.admission')) AS d_start,
            coalesce(maxOrNullIf(finish, name = 'decode.admission'), minOrNullIf(begin, name = 'decode.remote_wait')) AS d_alloc,
            coalesce(maxOrNullIf(finish, name = 'decode.remote_wait'), minOrNullIf(begin, name = 'decode.queue')) AS d_told,
            coalesce(maxOrNullIf(finish, name = 'decode.queue'), minOrNullIf(begin, name = 'decode.first_step')) AS d_sched,
            maxOrNullIf(finish, name = 'decode.first_step') AS d_first,
            maxOrNullIf(finish, name = 'decode') AS d_end,
            countIf(name = 'decode.remote_wait') > 0 AS waited,
            anyIf(a['kv_transfer.outcome'], name = 'decode.remote_wait') AS wait_outcome,
            maxIf(toInt64OrZero(a['kv_transfer.prompt_tokens']), name = 'decode') AS d_prompt_tokens,
            maxIf(toInt64OrZero(a['kv_transfer.output_tokens']), name = 'decode') AS output_tokens,
            maxOrNullIf(toInt64OrZero(a['kv_transfer.external_tokens']), name = 'decode') AS external_tokens,
            anyIf(a['kv_transfer.finish_reason'], name = 'decode') AS d_finish
        FROM spans
        WHERE name IN ('decode', 'decode.admission', 'decode.remote_wait', 'decode.queue', 'decode.first_step')
        GROUP BY engine, id
    ),

    -- Which decode request belongs to which prefill request, as either side names it.
    links AS (
        SELECT DISTINCT
            if(from_d, peer_engine, engine) AS l_p_engine, if(from_d, peer_id, id) AS l_p_id,
            if(from_d, engine, peer_engine) AS l_d_engine, if(from_d, id, peer_id) AS l_d_id
        FROM (
            SELECT
                engine, id, a['kv_transfer.peer_engine_id'] AS peer_engine, a['kv_transfer.peer_request_id'] AS peer_id,
                name = 'decode' OR (mode != 'bidirectional' AND a['kv_transfer.direction'] = 'READ') AS from_d,
                name = 'pairing' OR a['kv_transfer.direction'] = 'WRITE' AS from_p
            FROM spans
            WHERE name IN ('decode', 'pairing', 'post', 'wire') AND peer_id != '' AND (from_d OR from_p)
        )
    ),
    pairs AS (
        SELECT d_engine, d_id, any(p_engine) AS pair_engine, any(p_id) AS pair_id
        FROM links
        INNER JOIN (SELECT p_engine, p_id FROM p_all) AS p ON l_p_id = p.p_id
        INNER JOIN (SELECT d_engine, d_id FROM d_all) AS d ON l_d_id = d.d_id
        WHERE l_p_engine IN ('', p_engine) AND l_d_engine IN ('', d_engine)
        GROUP BY d_engine, d_id
    ),

    -- The decode request with the earliest first token stands for its siblings (n > 1, or a leg that was tried again).
    d_one AS (
        SELECT *
        FROM (
            SELECT
                *,
                row_number() OVER (PARTITION BY family ORDER BY d_first IS NULL, d_first, d_seen, d_id) AS place,
                count() OVER (PARTITION BY family) - 1 AS siblings
            FROM (
                SELECT
                    *,
                    coalesce(max(pair_id) OVER (PARTITION BY d_engine, base_id), '') AS mate_id,
                    coalesce(max(pair_engine) OVER (PARTITION BY d_engine, base_id), '') AS mate_engine,
                    if(mate_id != '', concat('p ', mate_engine, ' ', mate_id), concat('d ', d_engine, ' ', base_id)) AS family
                FROM d_all
                LEFT JOIN pairs USING (d_engine, d_id)
            )
        )
        WHERE place = 1
    ),
    d_keyed AS (
        SELECT *, if(mate_id != '', family, concat(d_trace, ' ', toString(
            row_number() OVER (PARTITION BY d_trace, mate_id != '' ORDER BY d_seen)))) AS meeting
        FROM d_one
    ),
    p_one AS (
        SELECT *
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY p_engine, replaceRegexpOne(p_id, '^[0-9]+_', '') ORDER BY mated DESC, p_end IS NULL, p_end, p_id
            ) AS place
            FROM (
                SELECT *, (p_engine, p_id) IN (SELECT mate_engine, mate_id FROM d_one) AS mated
                FROM p_all
            )
        )
        WHERE place = 1
    ),
    p_keyed AS (
        SELECT *, if(mated, concat('p ', p_engine, ' ', p_id), concat(p_trace, ' ', toString(
            row_number() OVER (PARTITION BY p_trace, mated ORDER BY p_seen)))) AS meeting
        FROM p_one
    ),
    attempts AS (
        SELECT *, coalesce(p_mode, d_mode) AS e_mode, least(coalesce(p_seen, d_seen), coalesce(d_seen, p_seen)) AS e_seen
        FROM p_keyed
        FULL JOIN d_keyed USING (meeting)
    ),

    -- Router: one row per request received, its legs found by their parent, else as the n-th of the same request.
    r_requests AS (
        SELECT
            span_id AS r_span, trace AS r_trace, key AS r_key, boot AS r_boot, begin AS r_start, finish AS r_end,
            a['kv_transfer.mode'] AS r_mode, a['kv_transfer.status'] AS r_status, a['kv_transfer.error'] AS r_error,
            nullIf(toInt64OrZero(a['kv_transfer.client_sent_ns']), 0) + shift AS r_client_sent,
            nullIf(toInt64OrZero(a['kv_transfer.first_byte_ns']), 0) + shift AS r_first_byte,
            toInt64OrZero(a['kv_transfer.prompt_tokens']) AS r_prompt_tokens,
            row_number() OVER (PARTITION BY trace, key ORDER BY begin) AS nth
        FROM spans
        WHERE name = 'router.request'
    ),
    r_legs AS (
        SELECT
            if(leg.parent_id IN (SELECT r_span FROM r_requests), leg.parent_id, r.r_span) AS leg_of,
            minOrNullIf(begin, name = 'router.prefill') AS r_prefill_start,
            maxOrNullIf(finish, name = 'router.prefill') AS r_prefill_end,
            minOrNullIf(begin, name = 'router.decode') AS r_decode_start,
            minOrNullIf(nullIf(toInt64OrZero(a['kv_transfer.first_byte_ns']), 0) + shift, name = 'router.decode') AS r_decode_first
        FROM (
            SELECT *, row_number() OVER (PARTITION BY name, trace, key ORDER BY begin) AS nth
            FROM spans
            WHERE name IN ('router.prefill', 'router.decode')
        ) AS leg
        LEFT JOIN (SELECT r_span, r_trace, r_key, nth FROM r_requests) AS r
            ON leg.trace = r.r_trace AND leg.key = r.r_key AND leg.nth = r.nth
        GROUP BY leg_of
    ),
    engine_ids AS (
        SELECT DISTINCT trace, key FROM spans WHERE startsWith(name, 'prefill') OR startsWith(name, 'decode')
    ),
    r_keyed AS (
        SELECT *, concat(ident, ' ', toString(row_number() OVER (PARTITION BY ident ORDER BY r_start))) AS door
        FROM (
            SELECT *, multiIf(
                (r_trace, r_key) IN (SELECT trace, key FROM engine_ids), concat('both ', r_trace, ' ', r_key),
                r_key != '' AND r_key IN (SELECT key FROM engine_ids), concat('key ', r_key),
                concat('trace ', r_trace)) AS ident
            FROM r_requests
            LEFT JOIN r_legs ON r_span = leg_of
        )
    ),
    a_keyed AS (
        SELECT *, concat(ident, ' ', toString(row_number() OVER (PARTITION BY ident ORDER BY e_seen))) AS door
        FROM (
            SELECT *, multiIf(
                (assumeNotNull(coalesce(p_trace, '')), assumeNotNull(coalesce(p_key, ''))) IN (SELECT r_trace, r_key FROM r_requests),
                    concat('both ', p_trace, ' ', p_key),
                (assumeNotNull(coalesce(d_trace, '')), assumeNotNull(coalesce(d_key, ''))) IN (SELECT r_trace, r_key FROM r_requests),
                    concat('both ', d_trace, ' ', d_key),
                coalesce(p_key, '') != '' AND p_key IN (SELECT r_key FROM r_requests), concat('key ', p_key),
                coalesce(d_key, '') != '' AND d_key IN (SELECT r_key FROM r_requests), concat('key ', d_key),
                concat('trace ', coalesce(p_trace, d_trace))) AS ident
            FROM attempts
        )
    ),

    -- Transfers: of each rank the one that landed last, of the ranks the slowest.
    ranks AS (
        SELECT
            engine AS x_engine, id AS x_id, a['kv_transfer.rank'] AS rank,
            argMaxOrNullIf(
                (begin, toInt64OrZero(a['kv_transfer.landed_after_ns']) + shift,
                 toInt64OrZero(a['kv_transfer.landed_before_ns']) + shift, toInt64OrZero(a['kv_transfer.bytes']),
                 toInt64OrZero(a['kv_transfer.descriptors'])),
                finish, name = 'wire' AND a['kv_transfer.outcome'] IN ('ok', '')) AS wire,
            groupArrayIf((begin, finish), name = 'post') AS posts,
            -- The post of that wire: the one that returned when the wire began (the last one if nothing landed).
            arraySort(p -> abs(p.2 - coalesce(wire.1, 9000000000000000000)), posts)[1] AS post,
            any(a['kv_transfer.direction']) AS direction,
            anyIf(a['kv_transfer.peer_engine_id'], a['kv_transfer.peer_engine_id'] != '') AS peer,
            maxOrNullIf(nullIf(toInt64OrZero(a['kv_transfer.registration_seen_ns']), 0) + shift, name = 'pairing') AS seen
        FROM spans
        WHERE name IN ('post', 'wire', 'pairing')
        GROUP BY engine, id, rank
    ),
    transfers AS (
        SELECT
            x_engine, x_id, count() AS x_ranks,
            argMax(
                (rank, direction, peer, if(empty(posts), NULL, post.1), coalesce(wire.1, if(empty(posts), NULL, post.2)),
                 wire.2, wire.3, wire.4, wire.5, seen),
                (coalesce(wire.3, 0), post.2, coalesce(seen, 0))) AS x,
            max(seen) AS x_last_seen
        FROM ranks
        GROUP BY x_engine, x_id
    ),
    notified AS (
        SELECT engine AS n_engine, id AS n_id, max(begin) AS n_seen
        FROM spans
        WHERE name = 'notification'
        GROUP BY engine, id
    )
SELECT
    coalesce(nullIf(e_mode, ''), nullIf(r_mode, ''), '') AS mode,
    coalesce(r_trace, p_trace, d_trace) AS trace_id,
    coalesce(nullIf(r_key, ''), nullIf(p_key, ''), d_key, '') AS request_key,
    p_engine, p_id, d_engine, d_id, coalesce(siblings, 0) AS siblings,
    arrayDistinct(arrayFilter(b -> b != '', [coalesce(r_boot, ''), coalesce(p_boot, ''), coalesce(d_boot, '')])) AS boots,
    coalesce(nullIf(p_prompt_tokens, 0), nullIf(d_prompt_tokens, 0), nullIf(r_prompt_tokens, 0)) AS prompt_tokens,
    cached_tokens, chunks, p_finish, d_finish, output_tokens, external_tokens, CAST(waited AS Nullable(Bool)) AS waited, wait_outcome,
    r_status, r_error, r_start, r_end, r_client_sent, r_first_byte,
    r_prefill_start, r_prefill_end, r_decode_start, r_decode_first,
    p_start, p_sched, p_end, d_start, d_alloc, d_told, d_sched, d_first, d_end,
    x_engine, x_ranks, x.1 AS x_rank, x.2 AS x_direction,
    coalesce(nullIf(x.3, ''), if(mode = 'push', d_engine, p_engine)) AS x_peer,
    x.4 AS post_start, x.5 AS post_end, x.6 AS landed_after, x.7 AS landed_done, x.8 AS bytes, x.9 AS descriptors,
    coalesce(x.10, x_last_seen) AS reg_seen,
    -- In push the notification on D bounds the landing from above as well, if D has P's clock.
    if(mode = 'push' AND p_boot = d_boot, n_seen, NULL) AS notified_at
FROM a_keyed
FULL JOIN r_keyed USING (door)
LEFT JOIN transfers ON x_engine = if(e_mode = 'push', p_engine, d_engine) AND x_id = if(e_mode = 'push', p_id, d_id)
LEFT JOIN notified ON n_engine = d_engine AND n_id = d_id
ORDER BY coalesce(r_client_sent, r_start, e_seen), trace_id, p_id, d_id
SETTINGS join_use_nulls = 1

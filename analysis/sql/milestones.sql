-- One row per request attempt: when it passed each milestone on the prefill engine (p_), on the decode engine (d_) and in
-- the slowest rank of its transfer (x_). Times are Unix ns on one re-based clock, NULL where nobody saw it.
--
-- Clocks: processes of one boot share CLOCK_MONOTONIC; each stamps t_unix = anchor_unix + (t_perf - anchor_perf) with an
-- anchor of its own, so `shift` puts them all on the earliest anchor of their boot. Boots are not aligned here.
-- Identity: a request id is unique per attempt on its engine. Pull: D names P's id; push: P names D's id; the one who is
-- named gives the `meeting`. What is left alone (a killed engine's half) meets as the n-th of its trace in time order.
-- Every CTE is used once: ClickHouse would run it again for each further use.
WITH
    /* parts/shifts.sql */ AS shifts,
    toUInt256('18446744073709551616') AS pow_64,
    pow_64 * pow_64 AS pow_128,
    spans AS (
        SELECT
            name, trace, engine, mode, boot, id, leg, key, rank, outcome, direction, peer, peer_id, finish_reason,
            prompt_tokens, cached_tokens, external_tokens, output_tokens, chunks, bytes, descriptors,
            landed_after_at, landed_before_at, registration_seen_at,
            transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
            own_begin + shift AS begin,
            begin + took AS finish,
            name IN ('prefill', 'decode') AS is_root
        FROM /* parts/spans.sql */
    ),

    -- A leg: one request on one engine, as its scheduler saw it.
    legs AS (
        SELECT
            leg, any(toString(engine)) AS engine, any(id) AS id,
            if(countIf(startsWith(name, 'decode')) > 0, 'd', 'p') AS side,
            any(trace) AS trace, any(key) AS key, any(toString(mode)) AS mode, any(toString(boot)) AS boot,
            min(begin) AS seen,
            minOrNullIf(begin, name IN ('prefill', 'prefill.queue', 'decode', 'decode.admission')) AS start,
            coalesce(maxOrNullIf(finish, name = 'decode.admission'), minOrNullIf(begin, name = 'decode.remote_wait')) AS alloc,
            coalesce(maxOrNullIf(finish, name = 'decode.remote_wait'), minOrNullIf(begin, name = 'decode.queue')) AS told,
            coalesce(
                maxOrNullIf(finish, name IN ('prefill.queue', 'decode.queue')),
                minOrNullIf(begin, name IN ('prefill.compute', 'decode.first_step'))
            ) AS sched,
            -- The end of the prompt on P, of the first token on D.
            maxOrNullIf(finish, name IN ('prefill.compute', 'decode.first_step')) AS first,
            maxOrNullIf(finish, name = 'decode') AS ended,
            countIf(name = 'decode.remote_wait') > 0 AS waited,
            anyIf(toString(outcome), name = 'decode.remote_wait') AS wait_outcome,
            -- Numbers are -1 where a root has none.
            maxOrNullIf(prompt_tokens, is_root) AS prompt_tokens,
            maxOrNullIf(cached_tokens, is_root) AS cached_tokens,
            maxOrNullIf(external_tokens, is_root) AS external_tokens,
            maxOrNullIf(output_tokens, is_root) AS output_tokens,
            maxOrNullIf(chunks, is_root) AS chunks,
            anyIf(toString(finish_reason), is_root) AS finish_reason,
            anyIf(peer_id, is_root AND peer_id != '') AS root_peer_id
        FROM spans
        WHERE name IN ('prefill', 'prefill.queue', 'prefill.compute', 'decode', 'decode.admission', 'decode.remote_wait',
            'decode.queue', 'decode.first_step')
        GROUP BY leg
    ),

    -- A rank's transfer for a leg: of its wires the one that landed last, and the post that returned when it began. Times and
    -- numbers that nobody saw are 0 here (an aggregate of plain integers costs a tenth of one of tuples).
    ranks AS (
        SELECT
            leg, toString(rank) AS rank,
            countIf(is_wire) > 0 AS has_wire,
            argMaxIf(begin, finish, is_wire) AS wire_begin,
            argMaxIf(landed_after_at + shift, finish, is_wire) AS landed_after,
            argMaxIf(landed_before_at + shift, finish, is_wire) AS landed_done,
            argMaxIf(bytes, finish, is_wire) AS moved,
            argMaxIf(descriptors, finish, is_wire) AS descriptors,
            groupArrayIf(begin, name = 'post') AS begins,
            groupArrayIf(finish, name = 'post') AS ends,
            notEmpty(begins) AS has_post,
            if(length(ends) < 2, 1,
                indexOf(ends, arraySort(e -> abs(e - if(has_wire, wire_begin, 9000000000000000000)), ends)[1])) AS nearest,
            begins[nearest] AS post_begin,
            ends[nearest] AS post_end,
            anyIf(toString(direction), name = 'post') AS direction,
            anyIf(toString(peer), peer != '') AS peer,
            anyIf(peer_id, peer_id != '') AS peer_id,
            maxIf(registration_seen_at + shift, name = 'pairing' AND registration_seen_at != 0) AS reg_seen,
            maxIf(begin, name = 'notification') AS notified,
            -- What makes a rank the slowest: landed last, then posted last, then registered last.
            toUInt256(if(has_wire, landed_done, 0)) * pow_128 + toUInt256(post_end) * pow_64 + toUInt256(reg_seen) AS place
        FROM (SELECT *, name = 'wire' AND outcome IN ('ok', '') AS is_wire FROM spans)
        WHERE name IN ('post', 'wire', 'pairing', 'notification')
        GROUP BY leg, rank
    ),
    -- The slowest rank stands for the leg's transfer.
    transfers AS (
        SELECT
            leg, countIf(has_post) AS x_ranks, nullIf(max(notified), 0) AS n_seen, max(reg_seen) AS x_seen, max(peer_id) AS x_peer_id,
            argMax(rank, place) AS x_rank, argMax(direction, place) AS x_direction, argMax(peer, place) AS x_peer,
            argMax(has_wire, place) AS x_wire, argMax(has_post, place) AS x_post,
            nullIf(argMax(post_begin, place), 0) AS x_post_begin,
            nullIf(argMax(if(has_wire, wire_begin, post_end), place), 0) AS x_post_end,
            if(x_wire, argMax(landed_after, place), NULL) AS x_landed_after,
            if(x_wire, argMax(landed_done, place), NULL) AS x_landed_done,
            if(x_wire, argMax(moved, place), NULL) AS x_moved,
            if(x_wire, argMax(descriptors, place), NULL) AS x_descriptors,
            nullIf(argMax(reg_seen, place), 0) AS x_reg_seen
        FROM ranks
        GROUP BY leg
    ),

    -- Children of n > 1 are `<index>_<id>` of one request, so their common id makes the meeting.
    met AS (
        SELECT
            *,
            if(mode = 'push', if(side = 'd', id, x_peer_id), if(side = 'p', id, if(root_peer_id != '', root_peer_id, x_peer_id)))
                AS named,
            if(coalesce(named, '') = '', cityHash64(side, leg),
                cityHash64(if(named < ':', replaceRegexpOne(assumeNotNull(named), '^[0-9]+_', ''), assumeNotNull(named)))) AS meeting
        FROM legs
        LEFT JOIN transfers USING (leg)
    ),
    -- The leg that came first stands for its siblings (n > 1, or a leg that was tried again).
    chosen AS (
        SELECT *, uniqExact(side) OVER (PARTITION BY meeting) AS sides
        FROM (
            SELECT
                *,
                row_number() OVER (PARTITION BY meeting, side ORDER BY first IS NULL, first, seen, id) AS place,
                count() OVER (PARTITION BY meeting, side) - 1 AS others
            FROM met
        )
        WHERE place = 1
    ),
    -- Legs that met nobody are numbered by their trace; the others need no place, so that nothing is sorted for them.
    joined AS (
        SELECT *, side = if(mode = 'push', 'p', 'd') AS posts_here, if(sides = 2, meeting, cityHash64(trace,
            row_number() OVER (PARTITION BY if(sides = 2, 0, cityHash64(trace, side)) ORDER BY if(sides = 2, 0, seen)))) AS attempt
        FROM chosen
    ),
    attempts AS (
        SELECT
            anyIf(mode, mode != '') AS mode,
            anyOrNullIf(engine, side = 'p') AS p_engine, anyOrNullIf(id, side = 'p') AS p_id,
            anyOrNullIf(trace, side = 'p') AS p_trace, anyOrNullIf(key, side = 'p') AS p_key,
            anyOrNullIf(boot, side = 'p') AS p_boot,
            anyIf(start, side = 'p') AS p_start, anyIf(sched, side = 'p') AS p_sched, anyIf(first, side = 'p') AS p_end,
            anyIf(chunks, side = 'p') AS p_chunks, anyIf(cached_tokens, side = 'p') AS p_cached,
            anyIf(finish_reason, side = 'p') AS p_finished, anyIf(prompt_tokens, side = 'p') AS p_prompt,
            anyOrNullIf(engine, side = 'd') AS d_engine, anyOrNullIf(id, side = 'd') AS d_id,
            anyOrNullIf(trace, side = 'd') AS d_trace, anyOrNullIf(key, side = 'd') AS d_key,
            anyOrNullIf(boot, side = 'd') AS d_boot,
            anyIf(start, side = 'd') AS d_start, anyIf(alloc, side = 'd') AS d_alloc, anyIf(told, side = 'd') AS d_told,
            anyIf(sched, side = 'd') AS d_sched, anyIf(first, side = 'd') AS d_first, anyIf(ended, side = 'd') AS d_end,
            anyOrNullIf(waited, side = 'd') AS d_waited, anyIf(wait_outcome, side = 'd') AS d_wait_outcome,
            anyIf(finish_reason, side = 'd') AS d_finished, anyIf(prompt_tokens, side = 'd') AS d_prompt,
            anyIf(output_tokens, side = 'd') AS d_output, anyIf(external_tokens, side = 'd') AS d_external,
            anyIf(n_seen, side = 'd') AS d_notified,
            sumIf(others, side = 'd') AS siblings,
            -- The side that posts: D in pull, P in push.
            anyOrNullIf(x_ranks, posts_here) AS ranks,
            anyOrNullIf(x_rank, posts_here) AS x_rank, anyOrNullIf(x_direction, posts_here) AS x_direction,
            anyIf(x_peer, posts_here) AS x_peer,
            anyIf(x_post_begin, posts_here) AS x_post_begin, anyIf(x_post_end, posts_here) AS x_post_end,
            anyIf(x_landed_after, posts_here) AS x_landed_after, anyIf(x_landed_done, posts_here) AS x_landed_done,
            anyIf(x_moved, posts_here) AS x_moved, anyIf(x_descriptors, posts_here) AS x_descriptors,
            anyIf(x_reg_seen, posts_here) AS x_reg_seen,
            anyIf(x_seen, posts_here) AS last_seen
        FROM joined
        GROUP BY attempt
    )
SELECT
    mode, p_engine, p_id, p_trace, p_key, d_engine, d_id, d_trace, d_key, siblings,
    arrayDistinct(arrayFilter(b -> b != '', [coalesce(p_boot, ''), coalesce(d_boot, '')])) AS boots,
    p_boot, d_boot,
    coalesce(nullIf(p_prompt, -1), nullIf(d_prompt, -1)) AS prompt_tokens,
    nullIf(p_cached, -1) AS cached_tokens,
    nullIf(p_chunks, -1) AS chunks,
    nullIf(p_finished, '') AS p_finish,
    nullIf(d_finished, '') AS d_finish,
    nullIf(d_output, -1) AS output_tokens,
    nullIf(d_external, -1) AS external_tokens,
    CAST(d_waited AS Nullable(Bool)) AS waited,
    nullIf(d_wait_outcome, '') AS wait_outcome,
    p_start, p_sched, p_end, d_start, d_alloc, d_told, d_sched, d_first, d_end,
    if(mode = 'push', p_engine, d_engine) AS x_engine,
    ranks AS x_ranks, x_rank, x_direction,
    coalesce(nullIf(attempts.x_peer, ''), if(mode = 'push', d_engine, p_engine)) AS x_peer,
    x_post_begin AS post_start, x_post_end AS post_end, x_landed_after AS landed_after, x_landed_done AS landed_done,
    x_moved AS bytes, x_descriptors AS descriptors,
    coalesce(x_reg_seen, nullIf(last_seen, 0)) AS reg_seen,
    -- In push the notification on D bounds the landing from above as well, if D has P's clock.
    if(mode = 'push' AND p_boot = d_boot, d_notified, NULL) AS notified_at
FROM attempts
ORDER BY coalesce(p_start, d_start), p_id, d_id
SETTINGS join_use_nulls = 1

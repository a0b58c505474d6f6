-- One row per request attempt: when it passed each milestone on the prefill engine (p_), on the decode engine (d_) and in
-- the slowest rank of its transfer (x_). Times are Unix ns on one re-based clock, NULL where nobody saw it.
--
-- Clocks: processes of one boot share CLOCK_MONOTONIC; each stamps t_unix = anchor_unix + (t_perf - anchor_perf) with an
-- anchor of its own, so `shift` puts them all on the earliest anchor of their boot. Boots are not aligned here.
-- Identity: a request id is unique per attempt on its engine. Pull: D names P's id; push: P names D's id; the one who is
-- named gives the `meeting`. What is left alone (a killed engine's half) meets as the n-th of its trace in time order.
-- Every CTE is used once: ClickHouse would run it again for each further use.
-- Cost: up to the last two joins all columns are plain integers (a string in an aggregate takes 64 bytes and more, a
-- NULL twice the time): ids are hashes, words are places in `words`, 0 is what nobody saw, numbers are kept one larger.
WITH
    /* parts/shifts.sql */ AS shifts,
    (
        SELECT (groupUniqArray(toString(rank)), groupUniqArray(toString(direction)), groupUniqArray(toString(peer)))
        FROM /* parts/spans.sql */
        WHERE name IN ('post', 'wire', 'pairing')
    ) AS transfer_words,
    (SELECT groupUniqArray(toString(outcome)) FROM /* parts/spans.sql */ WHERE name = 'decode.remote_wait') AS outcomes,

    -- A leg: one request on one engine, as its scheduler saw it.
    legs AS (
        SELECT
            leg,
            max(startsWith(name, 'decode')) AS is_d,
            max(mode = 'push') AS is_push,
            any(own_id) AS own_id, any(child) AS child, any(trace_hash) AS trace_hash,
            minIf(begin, name != 'notification') AS seen,
            minIf(begin, name IN ('prefill', 'prefill.queue', 'decode', 'decode.admission')) AS start,
            maxIf(finish, name = 'decode.admission') AS admitted,
            minIf(begin, name = 'decode.remote_wait') AS waiting,
            maxIf(finish, name = 'decode.remote_wait') AS waited,
            minIf(begin, name = 'decode.queue') AS queued,
            maxIf(finish, name IN ('prefill.queue', 'decode.queue')) AS dequeued,
            minIf(begin, name IN ('prefill.compute', 'decode.first_step')) AS computing,
            -- The end of the prompt on P, of the first token on D.
            maxIf(finish, name IN ('prefill.compute', 'decode.first_step')) AS first,
            maxIf(finish, name = 'decode') AS ended,
            maxIf(begin, name = 'notification') AS notified,
            maxIf(outcome_word, name = 'decode.remote_wait') AS wait_outcome,
            maxIf(peer_hash, name IN ('prefill', 'decode')) AS root_peer
        FROM (
            SELECT
                leg, name, mode,
                own_begin + transform(process, shifts.1, shifts.2, toInt64(0)) AS begin,
                begin + took AS finish,
                -- Children of n > 1 are `<index>_<id>` of one request, so their common id makes the meeting.
                if(id < ':', cityHash64(replaceRegexpOne(id, '^[0-9]+_', '')), cityHash64(id)) AS own_id,
                toUInt8(least(ascii(id), 63)) AS child,
                cityHash64(trace) AS trace_hash,
                multiIf(peer_id = '', 0,
                    peer_id < ':', cityHash64(replaceRegexpOne(peer_id, '^[0-9]+_', '')), cityHash64(peer_id)) AS peer_hash,
                CAST(transform(outcome, outcomes, range(1, 1 + length(outcomes)), 0) AS UInt16) AS outcome_word
            FROM /* parts/spans.sql */
            WHERE name IN ('prefill', 'prefill.queue', 'prefill.compute', 'decode', 'decode.admission',
                'decode.remote_wait', 'decode.queue', 'decode.first_step', 'notification')
        )
        GROUP BY leg
        HAVING seen != 0
    ),

    -- A rank's transfer for a leg: of its wires the one that landed last, and the post that returned when it began.
    ranks AS (
        SELECT
            leg, rank_word,
            countIf(is_wire) > 0 AS has_wire,
            argMaxIf(begin, finish, is_wire) AS wire_begin,
            argMaxIf(landed_after_at, finish, is_wire) AS landed_after,
            argMaxIf(landed_before_at, finish, is_wire) AS landed_done,
            argMaxIf(bytes, finish, is_wire) AS moved,
            argMaxIf(descriptors, finish, is_wire) AS descriptors,
            groupArrayIf(begin, name = 'post') AS begins,
            groupArrayIf(finish, name = 'post') AS ends,
            notEmpty(begins) AS has_post,
            if(length(ends) < 2, 1,
                indexOf(ends, arraySort(e -> abs(e - if(has_wire, wire_begin, 9000000000000000000)), ends)[1])) AS nearest,
            begins[nearest] AS post_begin,
            ends[nearest] AS post_end,
            maxIf(direction_word, name = 'post') AS direction,
            max(peer_word) AS peer,
            max(peer_hash) AS peer_hash,
            maxIf(registration_seen_at, name = 'pairing') AS reg_seen,
            -- What makes a rank the slowest: landed last, then posted last, then registered last.
            bitShiftLeft(toUInt128(if(has_wire, landed_done, 0)), 64)
                + if(post_end > 0, 9223372036854775808 + toUInt64(post_end), toUInt64(reg_seen)) AS place
        FROM (
            SELECT
                leg, name, bytes, descriptors,
                transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
                own_begin + shift AS begin,
                begin + took AS finish,
                landed_after_at + shift AS landed_after_at,
                landed_before_at + shift AS landed_before_at,
                if(registration_seen_at = 0, 0, registration_seen_at + shift) AS registration_seen_at,
                name = 'wire' AND outcome IN ('ok', '') AS is_wire,
                CAST(transform(rank, transfer_words.1, range(1, 1 + length(transfer_words.1)), 0) AS UInt16) AS rank_word,
                CAST(transform(direction, transfer_words.2, range(1, 1 + length(transfer_words.2)), 0) AS UInt16) AS direction_word,
                CAST(if(peer = '', 0, transform(peer, transfer_words.3, range(1, 1 + length(transfer_words.3)), 0)) AS UInt16) AS peer_word,
                multiIf(peer_id = '', 0,
                    peer_id < ':', cityHash64(replaceRegexpOne(peer_id, '^[0-9]+_', '')), cityHash64(peer_id)) AS peer_hash
            FROM /* parts/spans.sql */
            WHERE name IN ('post', 'wire', 'pairing')
        )
        GROUP BY leg, rank_word
    ),
    -- The slowest rank stands for the leg's transfer.
    transfers AS (
        SELECT
            leg, 1 + countIf(has_post) AS x_ranks, max(reg_seen) AS x_seen, max(peer_hash) AS x_peer_hash,
            argMax(has_wire, place) AS x_wire, argMax(rank_word, place) AS x_rank,
            argMax(direction, place) AS x_direction, argMax(peer, place) AS x_peer,
            argMax(post_begin, place) AS x_post_begin,
            argMax(if(has_wire, wire_begin, post_end), place) AS x_post_end,
            argMax(landed_after, place) AS x_landed_after, argMax(landed_done, place) AS x_landed_done,
            argMax(moved, place) AS x_moved, argMax(descriptors, place) AS x_descriptors,
            argMax(reg_seen, place) AS x_reg_seen
        FROM ranks
        GROUP BY leg
    ),

    met AS (
        SELECT
            *,
            if(admitted != 0, admitted, waiting) AS alloc, if(waited != 0, waited, queued) AS told,
            if(dequeued != 0, dequeued, computing) AS sched, waited != 0 AS has_waited,
            multiIf(is_push, if(is_d, own_id, x_peer_hash), NOT is_d, own_id, if(root_peer != 0, root_peer, x_peer_hash))
                AS named,
            if(named = 0, cityHash64(is_d, leg), named) AS meeting,
            -- The leg that came first stands for its siblings (n > 1, or a leg that was tried again).
            bitShiftLeft(toUInt128(if(first = 0, 4611686018427387903, first)), 66) + bitShiftLeft(toUInt128(seen), 4)
                + toUInt8(least(child - 48, 15)) AS place
        FROM legs
        LEFT JOIN transfers USING (leg)
    ),
    -- Of each side the leg with the least place; of the transfer the side's that posts (D in pull, P in push).
    meetings AS (
        SELECT
            meeting, countIf(is_d) AS d_legs, countIf(NOT is_d) AS p_legs,
            argMin(trace_hash, place) AS trace_hash, argMin(seen, place) AS seen,
            argMinIf(leg, place, NOT is_d) AS p_leg, argMinIf(start, place, NOT is_d) AS p_start,
            argMinIf(sched, place, NOT is_d) AS p_sched, argMinIf(first, place, NOT is_d) AS p_end,
            argMinIf(leg, place, is_d) AS d_leg, argMinIf(start, place, is_d) AS d_start,
            argMinIf(alloc, place, is_d) AS d_alloc, argMinIf(told, place, is_d) AS d_told,
            argMinIf(sched, place, is_d) AS d_sched, argMinIf(first, place, is_d) AS d_first,
            argMinIf(ended, place, is_d) AS d_end, argMinIf(has_waited, place, is_d) AS d_waited,
            argMinIf(wait_outcome, place, is_d) AS d_wait_outcome, argMinIf(notified, place, is_d) AS d_notified,
            argMinIf(x_ranks, place, is_d != is_push) AS x_ranks, argMinIf(x_wire, place, is_d != is_push) AS x_wire,
            argMinIf(x_rank, place, is_d != is_push) AS x_rank,
            argMinIf(x_direction, place, is_d != is_push) AS x_direction,
            argMinIf(x_peer, place, is_d != is_push) AS x_peer,
            argMinIf(x_post_begin, place, is_d != is_push) AS x_post_begin,
            argMinIf(x_post_end, place, is_d != is_push) AS x_post_end,
            argMinIf(x_landed_after, place, is_d != is_push) AS x_landed_after,
            argMinIf(x_landed_done, place, is_d != is_push) AS x_landed_done,
            argMinIf(x_moved, place, is_d != is_push) AS x_moved,
            argMinIf(x_descriptors, place, is_d != is_push) AS x_descriptors,
            argMinIf(if(x_reg_seen != 0, x_reg_seen, x_seen), place, is_d != is_push) AS x_reg_seen
        FROM met
        GROUP BY meeting
    ),
    -- Legs that met nobody are numbered by their trace; the others need no place, so that nothing is sorted for them.
    numbered AS (
        SELECT *, p_legs > 0 AND d_legs > 0 AS both, if(both, meeting, cityHash64(trace_hash, row_number() OVER (
            PARTITION BY if(both, 0, cityHash64(trace_hash, d_legs > 0)) ORDER BY if(both, 0, seen)))) AS attempt
        FROM meetings
    ),
    attempts AS (
        SELECT
            sum(p_leg) AS p_leg, sum(d_leg) AS d_leg, sum(greatest(d_legs, 1) - 1) AS siblings,
            sum(p_start) AS p_start, sum(p_sched) AS p_sched, sum(p_end) AS p_end,
            sum(d_start) AS d_start, sum(d_alloc) AS d_alloc, sum(d_told) AS d_told, sum(d_sched) AS d_sched,
            sum(d_first) AS d_first, sum(d_end) AS d_end, sum(d_waited) AS d_waited, sum(d_wait_outcome) AS d_wait_outcome,
            sum(d_notified) AS d_notified,
            sum(x_ranks) AS x_ranks, sum(x_wire) AS x_wire, sum(x_rank) AS x_rank, sum(x_direction) AS x_direction,
            sum(x_peer) AS x_peer, sum(x_post_begin) AS x_post_begin, sum(x_post_end) AS x_post_end,
            sum(x_landed_after) AS x_landed_after, sum(x_landed_done) AS x_landed_done, sum(x_moved) AS x_moved,
            sum(x_descriptors) AS x_descriptors, sum(x_reg_seen) AS x_reg_seen
        FROM numbered
        GROUP BY attempt
    )
SELECT
    if(p_leg != 0 AND p.mode != '' OR d_leg = 0, toString(p.mode), toString(d.mode)) AS mode,
    if(p_leg = 0, NULL, toString(p.engine)) AS p_engine, if(p_leg = 0, NULL, p.id) AS p_id,
    if(p_leg = 0, NULL, p.trace) AS p_trace, if(p_leg = 0, NULL, p.key) AS p_key,
    if(d_leg = 0, NULL, toString(d.engine)) AS d_engine, if(d_leg = 0, NULL, d.id) AS d_id,
    if(d_leg = 0, NULL, d.trace) AS d_trace, if(d_leg = 0, NULL, d.key) AS d_key,
    siblings,
    if(p_leg = 0, NULL, toString(p.boot)) AS p_boot, if(d_leg = 0, NULL, toString(d.boot)) AS d_boot,
    coalesce(nullIf(p.prompt, 0), nullIf(d.prompt, 0)) - 1 AS prompt_tokens,
    nullIf(p.cached, 0) - 1 AS cached_tokens,
    nullIf(p.chunks, 0) - 1 AS chunks,
    nullIf(toString(p.finish), '') AS p_finish,
    nullIf(toString(d.finish), '') AS d_finish,
    nullIf(d.output, 0) - 1 AS output_tokens,
    nullIf(d.external, 0) - 1 AS external_tokens,
    CAST(if(d_leg = 0, NULL, d_waited) AS Nullable(Bool)) AS waited,
    nullIf(outcomes[d_wait_outcome], '') AS wait_outcome,
    nullIf(p_start, 0) AS p_start, nullIf(p_sched, 0) AS p_sched, nullIf(p_end, 0) AS p_end,
    nullIf(d_start, 0) AS d_start, nullIf(d_alloc, 0) AS d_alloc, nullIf(d_told, 0) AS d_told,
    nullIf(d_sched, 0) AS d_sched, nullIf(d_first, 0) AS d_first, nullIf(d_end, 0) AS d_end,
    if(mode = 'push', p_engine, d_engine) AS x_engine,
    toUInt64(nullIf(x_ranks, 0) - 1) AS x_ranks,
    if(x_rank = 0, NULL, transfer_words.1[x_rank]) AS x_rank,
    if(x_rank IS NULL, NULL, transfer_words.2[attempts.x_direction]) AS x_direction,
    coalesce(nullIf(transfer_words.3[attempts.x_peer], ''), if(mode = 'push', d_engine, p_engine)) AS x_peer,
    nullIf(x_post_begin, 0) AS post_start, nullIf(x_post_end, 0) AS post_end,
    if(x_wire != 0, x_landed_after, NULL) AS landed_after, if(x_wire != 0, x_landed_done, NULL) AS landed_done,
    if(x_wire != 0, x_moved, NULL) AS bytes, if(x_wire != 0, x_descriptors, NULL) AS descriptors,
    nullIf(x_reg_seen, 0) AS reg_seen,
    -- In push the notification on D bounds the landing from above as well: at once if D has P's clock, else only when
    -- the clocks are known (analysis/clocks/notifications.py).
    if(mode = 'push' AND p_boot = d_boot, nullIf(d_notified, 0), NULL) AS notified_at,
    if(mode = 'push' AND p_boot != d_boot, nullIf(d_notified, 0), NULL) AS notified_apart
FROM attempts
-- What only the root says, and whose it is; any other span says that of a leg whose root was lost.
LEFT JOIN (
    SELECT
        leg, engine, id, trace, key, mode, boot,
        name = 'prefill' AS is_root, if(is_root, finish_reason, '') AS finish, (prompt_tokens + 1) * is_root AS prompt,
        (cached_tokens + 1) * is_root AS cached, (chunks + 1) * is_root AS chunks
    FROM /* parts/spans.sql */
    WHERE name IN ('prefill', 'prefill.queue', 'prefill.compute')
        AND (name = 'prefill' OR leg NOT IN (SELECT leg FROM /* parts/spans.sql */ WHERE name = 'prefill'))
    LIMIT 1 BY leg
) AS p ON p.leg = attempts.p_leg
LEFT JOIN (
    SELECT
        leg, engine, id, trace, key, mode, boot,
        name = 'decode' AS is_root, if(is_root, finish_reason, '') AS finish, (prompt_tokens + 1) * is_root AS prompt,
        (output_tokens + 1) * is_root AS output, (external_tokens + 1) * is_root AS external
    FROM /* parts/spans.sql */
    WHERE name IN ('decode', 'decode.admission', 'decode.remote_wait', 'decode.queue', 'decode.first_step')
        AND (name = 'decode' OR leg NOT IN (SELECT leg FROM /* parts/spans.sql */ WHERE name = 'decode'))
    LIMIT 1 BY leg
) AS d ON d.leg = attempts.d_leg
SETTINGS join_use_nulls = 0

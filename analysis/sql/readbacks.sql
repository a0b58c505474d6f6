-- What a prefill engine read back from a decode engine (bidirectional), one row per request: when its blocks were
-- allocated (p_alloc), when its scheduler was told that the decode engine's KV is here (p_told), and between them the
-- transfer of the slowest rank. Times are Unix ns on the re-based clock (see milestones.sql), NULL where nobody saw them.
--
-- The scheduler's spans carry no rank and make the group of rank ''; a decision whose wait was lost stands in for it.
WITH
    /* parts/shifts.sql */ AS shifts,
    spans AS (
        SELECT
            name, engine, id, leg, rank, outcome AS ended_as, peer, external_tokens, blocks, landed_after_at, landed_before_at, bytes,
            descriptors,
            transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
            own_begin + shift AS begin,
            begin + took AS finish,
            nullIf(fetch_ns, 0) AS fetch
        FROM /* parts/spans.sql */
        WHERE name IN ('prefill.remote_wait', 'decision', 'post', 'wire') AND role != 'decode' AND mode != 'push'
    ),

    -- A rank's read: of its wires the one that landed last, and the post that returned when it began.
    ranks AS (
        SELECT
            any(toString(engine)) AS engine, any(id) AS id, leg, toString(rank) AS rank,
            coalesce(
                minOrNullIf(begin, name = 'prefill.remote_wait'),
                maxOrNullIf(finish, name = 'decision' AND fetch IS NOT NULL)) AS alloc,
            coalesce(
                maxOrNullIf(finish, name = 'prefill.remote_wait'),
                maxOrNullIf(finish + fetch, name = 'decision' AND fetch IS NOT NULL)) AS told,
            anyIf(toString(ended_as), name = 'prefill.remote_wait') AS outcome,
            maxOrNullIf(external_tokens, name = 'prefill.remote_wait') AS tokens,
            maxOrNullIf(blocks, name = 'prefill.remote_wait') AS blocks,
            argMaxOrNullIf(
                (begin, landed_after_at + shift, landed_before_at + shift, bytes, descriptors),
                finish, name = 'wire' AND ended_as IN ('ok', '')) AS wire,
            groupArrayIf((begin, finish), name = 'post') AS posts,
            arraySort(p -> abs(p.2 - coalesce(wire.1, 9000000000000000000)), posts)[1] AS post,
            anyIf(toString(peer), peer != '') AS peer
        FROM spans
        GROUP BY leg, rank
    )
SELECT
    engine AS p_engine, id AS p_id,
    max(alloc) AS p_alloc, max(told) AS p_told,
    nullIf(max(outcome), '') AS rb_outcome,
    nullIf(max(tokens), -1) AS rb_tokens,
    nullIf(max(blocks), -1) AS rb_blocks,
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

-- Time that a rank spent in handshakes with one peer: disjoint intervals in time order, with the handshake time before
-- each, so that the time inside any [a, b] is one subtraction of two look-ups. Times in ns on the re-based clock.
WITH
    /* parts/shifts.sql */ AS shifts,
    spans AS (
        SELECT
            toString(engine) AS engine, toString(peer) AS peer, toString(rank) AS rank,
            own_begin + transform(process, shifts.1, shifts.2, toInt64(0)) AS begin,
            begin + took AS finish
        FROM /* parts/spans.sql */
        WHERE name = 'handshake'
    ),
    islands AS (
        SELECT engine, peer, rank, min(begin) AS begin, max(finish) AS finish
        FROM (
            SELECT *, sum(is_first) OVER (PARTITION BY engine, peer, rank ORDER BY begin, finish) AS island
            FROM (
                SELECT *, begin > max(finish) OVER (
                    PARTITION BY engine, peer, rank ORDER BY begin, finish ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS is_first
                FROM spans
            )
        )
        GROUP BY engine, peer, rank, island
    )
SELECT
    engine, peer, rank, begin, finish,
    toInt64(sum(finish - begin) OVER (PARTITION BY engine, peer, rank ORDER BY begin)) - (finish - begin) AS before_ns
FROM islands
ORDER BY begin

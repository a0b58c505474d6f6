-- Time that a rank spent in handshakes with one peer: disjoint intervals in time order, with the handshake time before
-- each, so that the time inside any [a, b] is one subtraction of two look-ups. Times in ns on the re-based clock.
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            ResourceAttributes['service.instance.id'] AS engine,
            SpanAttributes['kv_transfer.peer_engine_id'] AS peer,
            SpanAttributes['kv_transfer.rank'] AS rank,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
                - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens' AND SpanName = 'handshake'
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
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

-- What passed between the two engines of a transfer, besides the milestones: one row per message, the sender's stamp and
-- the receiver's, in Unix ns on the re-based clock of each one's boot (milestones.sql). Transfers meet by the id of the
-- request on the side that does not post (push: D's, pull: P's, readback: D's of the earlier turn), never by time.
--
-- A transfer's completion notification is surely later than the post's begin only: the other side may see it before the
-- poster's own poll sees the transfer done (a real READ was seen "in progress" 0.4 ms after P had the notification).
-- Of several ranks the earliest of either end is taken: that receipt followed its own sending, hence the earliest one.
WITH
    /* parts/clock_bases.sql */ AS bases,
    spans AS (
        SELECT
            SpanName AS name,
            ResourceAttributes['kvlens.clock.boot_id'] AS boot,
            toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
            if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix - bases[boot]) AS shift,
            toUnixTimestamp64Nano(Timestamp) + shift AS begin,
            begin + toInt64(Duration) AS finish,
            SpanName IN ('post', 'pairing') AS is_poster,
            if(is_poster, SpanAttributes['kv_transfer.peer_request_id'], SpanAttributes['kv_transfer.request_id']) AS id,
            SpanAttributes['kv_transfer.outcome'] AS outcome,
            nullIf(toInt64OrZero(SpanAttributes['kv_transfer.registration_seen_ns']), 0) + shift AS registration_seen
        FROM {table:Identifier}
        WHERE ScopeName = 'kvlens' AND SpanName IN ('post', 'pairing', 'notification', 'registration.send', 'lease')
            AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
            AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
            AND Duration <= 604800000000000
            AND unix > 0 AND boot != '' AND id != ''
            AND NOT startsWith(SpanAttributes['kv_transfer.request_key'], 'warmup-')
    ),
    transfers AS (
        SELECT
            anyIf(boot, is_poster) AS poster, anyIf(boot, NOT is_poster) AS other,
            minOrNullIf(begin, name = 'post') AS posted,
            minOrNullIf(begin, name = 'notification') AS notified,
            minOrNullIf(finish, name = 'lease' AND outcome IN ('read', 'received')) AS released,
            minOrNullIf(begin, name = 'registration.send') AS registering,
            minOrNullIf(registration_seen, name = 'pairing') AS registered,
            minOrNullIf(begin, name = 'lease' AND outcome IN ('read', 'received')) AS leased
        FROM spans
        GROUP BY id
        -- One boot on each side, two boots in all.
        HAVING uniqExactIf(boot, is_poster) = 1 AND uniqExactIf(boot, NOT is_poster) = 1 AND poster != other
    )
SELECT
    m.1 AS kind, if(m.2, poster, other) AS sender, if(m.2, other, poster) AS receiver,
    assumeNotNull(m.3) AS sent, assumeNotNull(m.4) AS received
FROM (
    SELECT
        poster, other,
        arrayJoin([
            ('notification', true, posted, notified),
            ('release', true, posted, released),
            ('registration', false, registering, registered),
            ('lease', false, leased, posted)
        ]) AS m
    FROM transfers
)
WHERE m.3 IS NOT NULL AND m.4 IS NOT NULL

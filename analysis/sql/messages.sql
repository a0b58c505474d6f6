-- What passed between the two engines of a transfer, besides the milestones: one row per message, the sender's stamp and
-- the receiver's, in Unix ns on the re-based clock of each one's boot (milestones.sql). Transfers meet by the id of the
-- request on the side that does not post (push: D's, pull: P's, readback: D's of the earlier turn), never by time.
--
-- A transfer's completion notification is surely later than the post's begin only: the other side may see it before the
-- poster's own poll sees the transfer done (a real READ was seen "in progress" 0.4 ms after P had the notification).
-- Of several ranks the earliest of either end is taken: that receipt followed its own sending, hence the earliest one.
WITH
    /* parts/shifts.sql */ AS shifts,
    spans AS (
        SELECT
            name, boot,
            transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
            own_begin + shift AS begin,
            begin + took AS finish,
            name IN ('post', 'pairing') AS is_poster,
            if(is_poster, peer_id, id) AS met_id,
            cityHash64(met_id) AS met,
            outcome,
            if(registration_seen_at = 0, NULL, registration_seen_at + shift) AS registration_seen
        FROM /* parts/spans.sql */
        WHERE name IN ('post', 'pairing', 'notification', 'registration.send', 'lease')
            AND unix > 0 AND boot != '' AND met_id != ''
    ),
    transfers AS (
        SELECT
            anyIf(toString(boot), is_poster) AS poster, anyIf(toString(boot), NOT is_poster) AS other,
            minOrNullIf(begin, name = 'post') AS posted,
            minOrNullIf(begin, name = 'notification') AS notified,
            minOrNullIf(finish, name = 'lease' AND outcome IN ('read', 'received')) AS released,
            minOrNullIf(begin, name = 'registration.send') AS registering,
            minOrNullIf(registration_seen, name = 'pairing') AS registered,
            minOrNullIf(begin, name = 'lease' AND outcome IN ('read', 'received')) AS leased
        FROM spans
        GROUP BY met
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

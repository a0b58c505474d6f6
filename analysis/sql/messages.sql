-- What passed between the two engines of a transfer, besides the milestones: one row per message, the sender's stamp and
-- the receiver's, in Unix ns on the re-based clock of each one's boot (milestones.sql). Transfers meet by the id of the
-- request on the side that does not post (push: D's, pull: P's, readback: D's of the earlier turn), never by time.
--
-- A transfer's completion notification is surely later than the post's begin only: the other side may see it before the
-- poster's own poll sees the transfer done (a real READ was seen "in progress" 0.4 ms after P had the notification).
-- Of several ranks the earliest of either end is taken: that receipt followed its own sending, hence the earliest one.
-- Of many transfers one in `one_in` says as much as all of them (analysis/clocks/messages.py).
-- Boots are places in `boots` and 0 is what nobody saw until the end (milestones.sql says why).
WITH
    /* parts/shifts.sql */ AS shifts,
    (SELECT arraySort(groupUniqArray(toString(boot))) FROM /* parts/processes.sql */) AS boots,
    transfers AS (
        SELECT
            minIf(place, is_poster) AS poster, minIf(place, NOT is_poster) AS other,
            minIf(begin, name = 'post') AS posted,
            minIf(begin, name = 'notification') AS notified,
            minIf(finish, is_read) AS released,
            minIf(begin, name = 'registration.send') AS registering,
            minIf(registration_seen, registration_seen != 0) AS registered,
            minIf(begin, is_read) AS leased
        FROM (
            SELECT
                name,
                CAST(transform(boot, boots, range(1, 1 + length(boots)), 0) AS UInt32) AS place,
                transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
                own_begin + shift AS begin,
                begin + took AS finish,
                name IN ('post', 'pairing') AS is_poster,
                -- The lease that the poster's message ends: a receiver that posts itself has leases of its own as well.
                name = 'lease' AND (outcome = 'read' OR outcome = 'received' AND mode = 'push') AS is_read,
                if(is_poster, peer_id, id) AS met_id,
                cityHash64(met_id) AS met,
                if(name != 'pairing' OR registration_seen_at = 0, 0, registration_seen_at + shift) AS registration_seen
            FROM /* parts/spans.sql */
            WHERE name IN ('post', 'pairing', 'notification', 'registration.send', 'lease')
                AND unix > 0 AND boot != '' AND met_id != '' AND met % {one_in:UInt64} = 0
        )
        GROUP BY met
        -- One boot on each side, two boots in all.
        HAVING poster != 0 AND poster = maxIf(place, is_poster)
            AND other != 0 AND other = maxIf(place, NOT is_poster) AND poster != other
    )
SELECT
    m.1 AS kind, boots[if(m.2, poster, other)] AS sender, boots[if(m.2, other, poster)] AS receiver,
    m.3 AS sent, m.4 AS received
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
WHERE m.3 != 0 AND m.4 != 0

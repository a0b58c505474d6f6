-- How far the last rank of a transfer landed behind the one before it: one row per leg with several ranks. Only lengths
-- between ranks of one engine leave this query, so boots need no alignment.
WITH
    /* parts/shifts.sql */ AS shifts,
    landings AS (
        SELECT
            leg, rank, any(toString(engine)) AS on_engine, any(id) AS own_id,
            max(landed_before_at + transform(process, shifts.1, shifts.2, toInt64(0))) AS landed
        FROM /* parts/spans.sql */
        WHERE name = 'wire' AND outcome IN ('ok', '') AND landed_before_at != 0
        GROUP BY leg, rank
    )
SELECT
    any(on_engine) AS engine, any(own_id) AS id,
    arrayReverseSort(groupArray(landed)) AS ends,
    toInt64(ends[1] - ends[2]) AS lead_ns
FROM landings
GROUP BY leg
HAVING length(ends) > 1

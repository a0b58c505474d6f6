-- One row per request at a router: its own times and those of its legs, which are its child spans. Unix ns on the
-- re-based clock (milestones.sql says how); client_sent is another process's stamp, kept at its distance from ours.
-- Rows come in no order.
WITH
    /* parts/shifts.sql */ AS shifts,
    legs AS (
        SELECT
            cityHash64(trace, parent_id) AS request,
            minIf(begin, name = 'router.prefill') AS prefill_start,
            maxIf(begin + took, name = 'router.prefill') AS prefill_end,
            minIf(begin, name = 'router.decode') AS decode_start,
            minIf(first_byte_at + shift, name = 'router.decode' AND first_byte_at != 0) AS decode_first
        FROM (
            SELECT
                name, trace, parent_id, took, first_byte_at,
                transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
                own_begin + shift AS begin
            FROM /* parts/spans.sql */
            WHERE name IN ('router.prefill', 'router.decode')
        )
        GROUP BY request
    )
SELECT
    trace AS r_trace,
    key AS r_key,
    nullIf(toString(boot), '') AS r_boot,
    toString(asked_mode) AS r_mode,
    nullIf(toString(status), '') AS r_status,
    nullIf(error, '') AS r_error,
    nullIf(greatest(prompt_tokens, 0), 0) AS r_prompt_tokens,
    toNullable(begin) AS r_start,
    toNullable(begin + took) AS r_end,
    if(client_sent_at = 0, NULL, client_sent_at + shift) AS r_client_sent,
    if(first_byte_at = 0, NULL, first_byte_at + shift) AS r_first_byte,
    nullIf(prefill_start, 0) AS r_prefill_start,
    nullIf(prefill_end, 0) AS r_prefill_end,
    nullIf(decode_start, 0) AS r_decode_start,
    nullIf(decode_first, 0) AS r_decode_first
FROM (
    SELECT
        trace, key, boot, asked_mode, status, error, prompt_tokens, took, client_sent_at, first_byte_at,
        cityHash64(trace, span_id) AS request,
        transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
        own_begin + shift AS begin
    FROM /* parts/spans.sql */
    WHERE name = 'router.request'
    LIMIT 1 BY request
) AS requests
LEFT JOIN legs USING (request)
SETTINGS join_use_nulls = 0

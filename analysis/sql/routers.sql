-- One row per request at a router: its own times and those of its legs, which are its child spans. Unix ns on the
-- re-based clock (milestones.sql says how); client_sent is another process's stamp, kept at its distance from ours.
WITH
    /* parts/shifts.sql */ AS shifts,
    spans AS (
        SELECT
            name, trace, boot, key, asked_mode, status, error, prompt_tokens, client_sent_at, first_byte_at,
            if(name = 'router.request', span_id, parent_id) AS request,
            transform(process, shifts.1, shifts.2, toInt64(0)) AS shift,
            own_begin + shift AS begin,
            begin + took AS finish
        FROM /* parts/spans.sql */
        WHERE name IN ('router.request', 'router.prefill', 'router.decode')
    )
SELECT
    trace AS r_trace,
    anyIf(key, name = 'router.request') AS r_key,
    nullIf(any(toString(boot)), '') AS r_boot,
    anyIf(toString(asked_mode), name = 'router.request') AS r_mode,
    nullIf(anyIf(toString(status), name = 'router.request'), '') AS r_status,
    nullIf(anyIf(error, name = 'router.request'), '') AS r_error,
    nullIf(greatest(anyIf(prompt_tokens, name = 'router.request'), 0), 0) AS r_prompt_tokens,
    minOrNullIf(begin, name = 'router.request') AS r_start,
    maxOrNullIf(finish, name = 'router.request') AS r_end,
    maxOrNullIf(client_sent_at + shift, name = 'router.request' AND client_sent_at != 0) AS r_client_sent,
    maxOrNullIf(first_byte_at + shift, name = 'router.request' AND first_byte_at != 0) AS r_first_byte,
    minOrNullIf(begin, name = 'router.prefill') AS r_prefill_start,
    maxOrNullIf(finish, name = 'router.prefill') AS r_prefill_end,
    minOrNullIf(begin, name = 'router.decode') AS r_decode_start,
    minOrNullIf(first_byte_at + shift, name = 'router.decode' AND first_byte_at != 0) AS r_decode_first
FROM spans
GROUP BY trace, request
HAVING r_start IS NOT NULL
ORDER BY r_start, r_trace

-- Processes and what each one's stamps are shifted by (ns) to be on the clock of its boot's earliest process: two arrays for
-- transform(). Processes of one boot share CLOCK_MONOTONIC, so this puts them on one clock, whatever their anchors said.
(
    SELECT (groupArray(process), groupArray(shift))
    FROM (
        SELECT
            toString(process) AS process,
            any(perf - unix) - any(base) AS shift
        FROM (
            SELECT
                process, boot, perf, unix,
                first_value(perf - unix) OVER (PARTITION BY boot ORDER BY perf, perf - unix) AS base
            FROM /* parts/processes.sql */
        )
        GROUP BY process
    )
)

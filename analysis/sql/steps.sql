-- One row per engine step (or run of idle steps) as the scheduler saw it, with the slowest rank's connector time (w_).
-- Times are ns on the re-based clock (see milestones.sql). Scheduler and workers meet by the step's number; `life` tells
-- the numbers of a restarted engine apart. A batch's columns of zeros are left out, so columns are padded here.
WITH
    /* parts/clock_bases.sql */ AS bases,
    batches AS (
        SELECT
            *, toInt64(sum(first_step < previous) OVER (PARTITION BY engine, side, rank ORDER BY start)) AS life
        FROM (
            SELECT
                SpanId AS batch,
                ResourceAttributes['service.instance.id'] AS engine,
                ResourceAttributes['kvlens.role'] AS role,
                ResourceAttributes['kvlens.mode'] AS mode,
                SpanAttributes AS a,
                a['kv_transfer.side'] AS side,
                a['kv_transfer.rank'] AS rank,
                a['kv_transfer.thread'] AS thread,
                toInt64OrZero(a['kv_transfer.first_step']) AS first_step,
                toUInt64OrZero(a['kv_transfer.rows']) AS rows,
                toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_unix_ns']) AS unix,
                if(unix = 0, 0, toInt64OrZero(ResourceAttributes['kvlens.clock.anchor_perf_ns']) - unix
                    - bases[ResourceAttributes['kvlens.clock.boot_id']]) AS shift,
                toUnixTimestamp64Nano(Timestamp) + shift AS start,
                lagInFrame(first_step, 1, 0) OVER (PARTITION BY engine, side, rank ORDER BY start) AS previous,
                JSONExtract(a['kv_transfer.steps'], 'Array(Int64)') AS steps,
                arrayMap((total, own) -> first_step + total - own, arrayCumSum(steps), steps) AS number,
                arrayMap(t -> start + t, arrayCumSum(arrayResize(
                    JSONExtract(a['kv_transfer.begin_ns'], 'Array(Int64)'), rows))) AS begin,
                arrayResize(JSONExtract(a['kv_transfer.duration_ns'], 'Array(Int64)'), rows) AS duration
            FROM {table:Identifier}
            WHERE ScopeName = 'kvlens' AND SpanName = 'step.batch'
                AND Timestamp >= toDateTime64('2001-01-01 00:00:00', 9, 'UTC')
                AND Timestamp < toDateTime64('2100-01-01 00:00:00', 9, 'UTC')
                AND Duration <= 604800000000000
        )
    ),
    scheduler AS (
        SELECT
            engine, role, mode, life, batch, toInt64(row - 1) AS row, n AS step, c AS steps, b AS begin, b + d AS finish,
            p AS prompt_tokens, t AS decode_tokens, r AS requests, x AS preempted, m AS build
        FROM batches
        ARRAY JOIN
            arrayEnumerate(steps) AS row, number AS n, steps AS c, begin AS b, duration AS d,
            arrayResize(JSONExtract(a['kv_transfer.prompt_tokens'], 'Array(Int64)'), rows) AS p,
            arrayResize(JSONExtract(a['kv_transfer.decode_tokens'], 'Array(Int64)'), rows) AS t,
            arrayResize(JSONExtract(a['kv_transfer.requests'], 'Array(Int64)'), rows) AS r,
            arrayResize(JSONExtract(a['kv_transfer.preempted'], 'Array(Int64)'), rows) AS x,
            arrayResize(JSONExtract(a['kv_transfer.build_ns'], 'Array(Int64)'), rows) AS m
        WHERE side = 'scheduler'
    ),
    ranks AS (
        SELECT
            engine, life, rank, thread, n AS step, b AS w_begin, b + d AS w_finish, b + o AS w_submit_begin, s AS w_submit,
            v AS w_save, q AS w_poll
        FROM batches
        ARRAY JOIN
            number AS n, steps AS c, begin AS b, duration AS d,
            arrayResize(JSONExtract(a['kv_transfer.submit_offset_ns'], 'Array(Int64)'), rows) AS o,
            arrayResize(JSONExtract(a['kv_transfer.submit_ns'], 'Array(Int64)'), rows) AS s,
            arrayResize(JSONExtract(a['kv_transfer.save_ns'], 'Array(Int64)'), rows) AS v,
            arrayResize(JSONExtract(a['kv_transfer.poll_ns'], 'Array(Int64)'), rows) AS q
        WHERE side = 'worker' AND c = 1
    ),
    workers AS (
        SELECT
            engine, life, step, count() AS w_ranks,
            argMax((rank, thread, w_begin, w_finish, w_submit_begin, w_submit, w_save, w_poll), w_submit + w_save + w_poll) AS w
        FROM ranks
        GROUP BY engine, life, step
    )
SELECT
    engine, role, mode, life, batch, row, step, steps, begin, finish, prompt_tokens, decode_tokens, requests, preempted, build,
    w_ranks, w.1 AS rank, w.2 AS thread, w.3 AS w_begin, w.4 AS w_finish, w.5 AS submit_begin, w.6 AS submit, w.7 AS save,
    w.8 AS poll
FROM scheduler
LEFT JOIN workers USING (engine, life, step)
ORDER BY engine, life, begin, step
SETTINGS join_use_nulls = 1

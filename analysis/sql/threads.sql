-- CPU time by thread over the samples of a run, per process; wait is the time ready to run but without a core.
SELECT
    engine, role, process, rank, kind, name, max(threads) AS threads, sum(cpu) AS cpu_ns,
    if(max(has_wait), sum(wait), NULL) AS wait_ns, sum(span) AS sampled_ns, count() AS samples
FROM (
    SELECT
        ResourceAttributes['service.instance.id'] AS engine,
        ResourceAttributes['kvlens.role'] AS role,
        if(SpanAttributes['kv_transfer.rank'] = '', 'scheduler', 'worker') AS process,
        SpanAttributes['kv_transfer.rank'] AS rank,
        toInt64(Duration) AS span,
        SpanAttributes['kv_transfer.wait_ns'] != '' AS has_wait,
        kind, name, threads, cpu, wait
    FROM {table:Identifier}
    ARRAY JOIN
        JSONExtract(SpanAttributes['kv_transfer.kinds'], 'Array(String)') AS kind,
        JSONExtract(SpanAttributes['kv_transfer.names'], 'Array(String)') AS name,
        JSONExtract(SpanAttributes['kv_transfer.threads'], 'Array(Int64)') AS threads,
        JSONExtract(SpanAttributes['kv_transfer.cpu_ns'], 'Array(Int64)') AS cpu,
        arrayResize(JSONExtract(SpanAttributes['kv_transfer.wait_ns'], 'Array(Int64)'),
            length(JSONExtract(SpanAttributes['kv_transfer.cpu_ns'], 'Array(Int64)'))) AS wait
    WHERE ScopeName = 'kvlens' AND SpanName = 'threads.sample' AND Duration <= 604800000000000
)
GROUP BY engine, role, process, rank, kind, name
ORDER BY engine, process, rank, cpu_ns DESC

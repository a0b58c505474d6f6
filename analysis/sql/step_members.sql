-- Who was scheduled in which row of which batch: kind 0 computes its prompt, 1 decodes. Warm-up requests are left out.
SELECT batch, first + toInt64(offset) AS row, request_id, kind
FROM (
    SELECT
        SpanId AS batch,
        JSONExtract(SpanAttributes['kv_transfer.request_ids'], 'Array(String)') AS ids,
        JSONExtract(SpanAttributes['kv_transfer.run_request'], 'Array(UInt32)') AS requests,
        length(requests) AS runs,
        request AS request_number,
        ids[request + 1] AS request_id,
        kind_of AS kind, first_of AS first, rows_of AS rows
    FROM {table:Identifier}
    ARRAY JOIN
        arrayResize(JSONExtract(SpanAttributes['kv_transfer.run_request'], 'Array(UInt32)'),
            length(JSONExtract(SpanAttributes['kv_transfer.run_rows'], 'Array(Int64)'))) AS request,
        arrayResize(JSONExtract(SpanAttributes['kv_transfer.run_kind'], 'Array(Int64)'),
            length(JSONExtract(SpanAttributes['kv_transfer.run_rows'], 'Array(Int64)'))) AS kind_of,
        arrayResize(JSONExtract(SpanAttributes['kv_transfer.run_first'], 'Array(Int64)'),
            length(JSONExtract(SpanAttributes['kv_transfer.run_rows'], 'Array(Int64)'))) AS first_of,
        JSONExtract(SpanAttributes['kv_transfer.run_rows'], 'Array(Int64)') AS rows_of
    WHERE ScopeName = 'kvlens' AND SpanName = 'step.batch' AND SpanAttributes['kv_transfer.side'] = 'scheduler'
)
ARRAY JOIN range(toUInt64(rows)) AS offset
WHERE NOT match(request_id, '^([0-9]+_)?(chat)?cmpl-warmup-')
ORDER BY batch, row, request_id

CREATE MATERIALIZED VIEW IF NOT EXISTS $database.$table$on_cluster
TO $database.$target
AS SELECT TraceId, min(toDateTime(Timestamp)) AS Start, max(toDateTime(Timestamp)) AS End
FROM $database.$source
WHERE TraceId != ''
GROUP BY TraceId

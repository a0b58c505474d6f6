(
    SELECT
        cityHash64(ServiceName, ResourceAttributes['service.instance.id'], ResourceAttributes['process.pid']) AS process,
        toUnixTimestamp64Nano(Timestamp) AS at,
        cityHash64(TraceId, SpanId) AS span
    FROM {table:Identifier}
)

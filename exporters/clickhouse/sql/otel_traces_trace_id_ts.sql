-- When each trace began and ended, as the collector makes it: Grafana's trace view looks a trace up here.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    TraceId String CODEC(ZSTD(1)),
    Start DateTime CODEC(Delta, ZSTD(1)),
    End DateTime CODEC(Delta, ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = $engine
PARTITION BY toDate(Start)
ORDER BY (TraceId, Start)
TTL Start + toIntervalDay($ttl_days)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1

-- Spans of each sort by boot and day, kept up as they arrive: what there is to analyse, without a look at any span.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    day Date,
    boot LowCardinality(String),
    ours UInt8,
    impossible UInt8,
    warmup UInt8,
    is_foreign UInt8,
    name LowCardinality(String),
    n UInt64
) ENGINE = $engine
PARTITION BY toYYYYMM(day)
ORDER BY (day, boot, ours, impossible, warmup, is_foreign, name)
TTL day + toIntervalDay($ttl_days)

-- Every process that was heard, with its clocks' anchor (ns): what spans of one boot are re-based with.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    boot LowCardinality(String),
    unix Int64,
    perf Int64,
    process LowCardinality(String),
    HeardAt DateTime DEFAULT now()
) ENGINE = $engine
ORDER BY process
TTL HeardAt + toIntervalDay($ttl_days)

-- Who has sent which span and when, as numbers: how a loader tells within milliseconds what an embedded table has already.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    process UInt64,
    at Int64,
    span UInt64
) ENGINE = $engine
ORDER BY (process, at)
SETTINGS index_granularity = 1024

-- Spans of requests as typed columns (parts/spans.sql says what they are): what the analysis reads instead of Maps.
-- Order key: a query wants some names. TTL drops whole parts, that is whole days.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    Timestamp DateTime64(9) CODEC($codec),
    name LowCardinality(String) CODEC($codec),
    trace String CODEC($codec),
    span_id String CODEC($codec),
    parent_id String CODEC($codec),
    engine LowCardinality(String) CODEC($codec),
    role LowCardinality(String) CODEC($codec),
    mode LowCardinality(String) CODEC($codec),
    boot LowCardinality(String) CODEC($codec),
    unix Int64 CODEC($codec),
    perf Int64 CODEC($codec),
    process LowCardinality(String) CODEC($codec),
    own_begin Int64 CODEC($codec),
    took Int64 CODEC($codec),
    id String CODEC($codec),
    key String CODEC($codec),
    leg UInt64 CODEC($codec),
    rank LowCardinality(String) CODEC($codec),
    outcome LowCardinality(String) CODEC($codec),
    direction LowCardinality(String) CODEC($codec),
    thread LowCardinality(String) CODEC($codec),
    finish_reason LowCardinality(String) CODEC($codec),
    peer LowCardinality(String) CODEC($codec),
    peer_id String CODEC($codec),
    asked_mode LowCardinality(String) CODEC($codec),
    status LowCardinality(String) CODEC($codec),
    error String CODEC($codec),
    prompt_tokens Int64 CODEC($codec),
    cached_tokens Int64 CODEC($codec),
    external_tokens Int64 CODEC($codec),
    output_tokens Int64 CODEC($codec),
    chunks Int64 CODEC($codec),
    landed_after_at Int64 CODEC($codec),
    landed_before_at Int64 CODEC($codec),
    registration_seen_at Int64 CODEC($codec),
    client_sent_at Int64 CODEC($codec),
    first_byte_at Int64 CODEC($codec),
    bytes Int64 CODEC($codec),
    descriptors Int64 CODEC($codec),
    fetch_ns Int64 CODEC($codec),
    blocks Int64 CODEC($codec)
) ENGINE = $engine
PARTITION BY toDate(Timestamp)
ORDER BY name
TTL toDateTime(Timestamp) + toIntervalDay($ttl_days)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1

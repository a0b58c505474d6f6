-- Where an embedded database takes spans in: otel_traces and what the typed tables need of a resource, looked up once for
-- all spans of a message. It keeps nothing (engine Null); views hand a block on to otel_traces and the typed tables alike.
-- Line: which lines gave spans, as numbers that mean nothing else.
CREATE TABLE IF NOT EXISTS $table
ENGINE = $engine
EMPTY AS SELECT
    *,
    $columns,
    toUInt64(0) AS Line
FROM $source

-- Where an embedded database takes spans in: otel_traces and what the typed tables need of a resource, looked up once for
-- all spans of a message. It keeps nothing (engine Null); views hand a block on to otel_traces and the typed tables alike.
-- NoSpan: a line that is none of ours (1), damaged (2) or empty (3), so that it is counted where the others are parsed.
CREATE TABLE IF NOT EXISTS $table
ENGINE = $engine
EMPTY AS SELECT
    *,
    $columns,
    toUInt8(0) AS NoSpan
FROM $source

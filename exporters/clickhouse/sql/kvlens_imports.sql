-- Which pieces of span files `kvlens load` has stored, by the digest of their bytes: how a re-import changes nothing.
CREATE TABLE IF NOT EXISTS $database.$table$on_cluster (
    Digest String,
    File String,
    Position UInt64,
    Lines UInt64,
    Spans UInt64,
    LoadedAt DateTime DEFAULT now()
) ENGINE = $engine
ORDER BY Digest
TTL LoadedAt + toIntervalDay($ttl_days)

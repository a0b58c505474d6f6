CREATE TABLE IF NOT EXISTS $database.$table$on_cluster
AS $database.$local
ENGINE = Distributed('$cluster', $database, $local, $key)

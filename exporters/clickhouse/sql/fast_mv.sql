CREATE MATERIALIZED VIEW IF NOT EXISTS $database.$table$on_cluster
TO $database.$target
AS SELECT * FROM $select

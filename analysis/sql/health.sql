-- What there is to analyse: kvlens spans and others, spans with impossible clocks, and which roles were heard
-- (exporters/clickhouse/sql/parts/counts.sql says what is what).
SELECT
    sum(n) AS spans,
    sumIf(n, is_foreign) AS foreign_spans,
    sumIf(n, impossible) AS impossible_spans,
    sumIf(n, warmup) AS warmup_spans,
    sumIf(n, ours AND NOT impossible AND NOT warmup) AS used_spans,
    sumIf(n, ours AND NOT impossible AND NOT warmup AND startsWith(name, 'prefill')) AS prefill_spans,
    sumIf(n, ours AND NOT impossible AND NOT warmup AND startsWith(name, 'decode')) AS decode_spans,
    sumIf(n, ours AND NOT impossible AND NOT warmup AND name = 'router.request') AS router_spans,
    sumIf(n, ours AND NOT impossible AND NOT warmup AND name = 'failure') AS failures,
    uniqExactIf(boot, ours) AS boots
FROM /* parts/counts.sql */

-- Lines of one file of OTLP JSON lines, and those that are cut off or damaged.
SELECT count() AS lines, countIf(NOT isValidJSON(line)) AS bad_lines
FROM file({path:String}, 'LineAsString', 'line String')
WHERE line != ''

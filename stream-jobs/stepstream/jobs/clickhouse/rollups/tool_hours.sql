-- Calls of the tools in the trajectories that opened in an hour; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT
    hour, tenant, tool, agent, model,
    sum(real) AS calls, countIf(class != '') AS failed,
    (sumMapIf([class], [toUInt64(1)], class != '') AS errors).1 AS `error.class`, errors.2 AS `error.calls`,
    (sumMapIf([toInt16(floor(log(greatest(took_ms, 0.01)) / log(1.1)))], [toUInt64(1)], took_ms >= 0) AS times).1 AS `ms.bin`, times.2 AS `ms.calls`,
    $now AS version
FROM
(
    SELECT toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, tenant, c.tool AS tool, agent, model, 1 AS real, toString(c.error) AS class,
        c.ms AS took_ms
    FROM (SELECT * FROM trajectories FINAL WHERE has(due, toStartOfHour(opened_at))) AS t
    ARRAY JOIN call AS c
    UNION ALL
    SELECT hour, tenant, tool, agent, model, 0 AS real, '' AS class, toFloat32(-1) AS took_ms
    FROM tool_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS tool, '' AS agent, '' AS model, 0 AS real, '' AS class, toFloat32(-1) AS took_ms
)
GROUP BY hour, tenant, tool, agent, model

-- Time to the first token of the steps of an hour, by cohort; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT
    hour, tenant, agent, model, environment, harness_version, policy_version, track, split,
    sum(real) AS steps,
    (sumMapIf([toInt16(floor(log(greatest(waited_ms, 0.01)) / log(1.1)))], [toUInt64(1)], real = 1) AS times).1 AS `ms.bin`,
    times.2 AS `ms.steps`,
    $now AS version
FROM
(
    SELECT toStartOfHour(toDateTime(occurred_at, 'UTC')) AS hour, tenant, agent, model, environment, harness_version,
        version_max AS policy_version, track, split, 1 AS real, assumeNotNull(first_token_ms) AS waited_ms
    FROM steps FINAL
    WHERE first_token_ms IS NOT NULL AND toStartOfFiveMinutes(occurred_at) IN
        (SELECT arrayJoin(due) + INTERVAL 5 * arrayJoin(range(12)) MINUTE)
    UNION ALL
    SELECT hour, tenant, agent, model, environment, harness_version, policy_version, track, split, 0 AS real, toFloat32(0) AS waited_ms
    FROM first_token_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS agent, '' AS model, '' AS environment, '' AS harness_version, toInt32(0) AS policy_version, '' AS track, '' AS split, 0 AS real, toFloat32(0) AS waited_ms
)
GROUP BY hour, tenant, agent, model, environment, harness_version, policy_version, track, split

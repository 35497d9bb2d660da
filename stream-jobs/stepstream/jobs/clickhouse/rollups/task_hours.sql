-- Outcomes of the attempts at each task that opened in an hour, by cohort and group; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT
    hour, tenant, agent, model, environment, harness_version, policy_version, track, split, task_id, group_id,
    sum(real) AS trajectories, countIf(outcome IS NOT NULL) AS outcomes, countIf(outcome) AS successes,
    sumIf(taken, outcome IS NOT NULL) AS steps,
    (sumMapIf([toUInt32(taken)], [toUInt64(1)], [toUInt64(NOT ifNull(outcome, true))], outcome IS NOT NULL) AS lengths).1 AS `length.steps`,
    lengths.2 AS `length.outcomes`, lengths.3 AS `length.failures`,
    $now AS version
FROM
(
    SELECT toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, tenant, agent, model, environment, harness_version,
        version_max AS policy_version, track, split, task_id, group_id, 1 AS real, steps AS taken,
        $outcome AS outcome
    FROM trajectories FINAL WHERE has(due, toStartOfHour(opened_at))
    UNION ALL
    SELECT hour, tenant, agent, model, environment, harness_version, policy_version, track, split, task_id, group_id, 0 AS real, 0 AS taken, NULL AS outcome
    FROM task_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS agent, '' AS model, '' AS environment, '' AS harness_version, toInt32(0) AS policy_version, '' AS track, '' AS split, '' AS task_id, '' AS group_id, 0 AS real, 0 AS taken, NULL AS outcome
)
GROUP BY hour, tenant, agent, model, environment, harness_version, policy_version, track, split, task_id, group_id

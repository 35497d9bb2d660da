SELECT
    $by,
    task_id,
    toInt64(countIf(t.outcome IS NOT NULL)) AS n,
    toInt64(countIf(t.outcome)) AS c,
    toFloat64(avg(t.cost_usd)) AS task_usd,
    toFloat64(sumIf(t.cost_usd, t.outcome IS NOT NULL)) AS spent,
    countIf(t.cost_usd IS NULL) AS uncosted,
    avg(dateDiff('millisecond', t.started_at, t.ended_at) / 1000) AS seconds,
    avg(dateDiff('millisecond', t.started_at, t.ended_at) <= 3000) AS within_3_s,
    avg(dateDiff('millisecond', t.started_at, t.ended_at) <= 30000) AS within_30_s,
    sum(t.errors) AS step_errors,
    sum(t.steps) AS all_steps
FROM
(
    $trajectories
) AS t
GROUP BY $by, task_id

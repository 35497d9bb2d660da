SELECT
    $by,
    count() AS tasks,
    countIf(n > 0) AS tasks_with_outcome,
    toUInt64(sum(c)) AS successes,
    if(tasks_with_outcome = 0, NULL, avgIf(c / n, n > 0)) AS accuracy,
    if(countIf(n >= 8) = 0, NULL, avgIf(arrayProduct(arrayMap(
        i -> greatest(0, c - i) / (n - i), range(least(8, n)))), n >= 8)) AS pass_hat_8,
    if(sum(uncosted) > 0, NULL, avg(usd)) AS usd_per_task,
    if(sum(uncosted) > 0, NULL, quantileExactInclusive(0.95)(usd)) AS p95_usd,
    if(sum(uncosted) > 0, NULL, sum(usd_with_outcome)) AS usd_of_outcomes,
    avg(seconds) AS seconds_per_task,
    quantilesExactInclusive(0.5, 0.95, 0.99)(seconds) AS quantiles_s,
    quantiles_s[1] AS p50_s,
    quantiles_s[2] AS p95_s,
    quantiles_s[3] AS p99_s,
    avg(in_3_s) AS within_3_s,
    avg(in_30_s) AS within_30_s,
    sum(task_steps) AS steps,
    sum(task_errors) AS step_errors,
    sum(task_violations) AS violations,
    sum(task_actions) AS critical_actions,
    sum(task_attacks) AS attacks,
    sum(task_resisted) AS resisted,
    $adherence,
    multiIf(accuracy IS NULL, 'no attempt has an outcome', usd_per_task IS NULL,
        'attempts without a cost: fill gateway.prices', pass_hat_8 IS NULL, 'no task has 8 attempts', '') AS reason
FROM
(
    SELECT
        $by,
        toInt64(countIf(t.outcome IS NOT NULL)) AS n,
        toInt64(countIf(t.outcome)) AS c,
        toFloat64(avg(t.cost_usd)) AS usd,
        toFloat64(sumIf(t.cost_usd, t.outcome IS NOT NULL)) AS usd_with_outcome,
        countIf(t.cost_usd IS NULL) AS uncosted,
        avg(dateDiff('millisecond', t.started_at, t.ended_at) / 1000) AS seconds,
        avg(dateDiff('millisecond', t.started_at, t.ended_at) <= 3000) AS in_3_s,
        avg(dateDiff('millisecond', t.started_at, t.ended_at) <= 30000) AS in_30_s,
        sum(t.errors) AS task_errors,
        sum(t.steps) AS task_steps,
        sum(s.violations) AS task_violations,
        sum(s.actions) AS task_actions,
        sum(s.attacks) AS task_attacks,
        sum(s.resisted) AS task_resisted
    FROM
    (
        $trajectories
    ) AS t
    LEFT JOIN
    (
        $safety_signals
    ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
    GROUP BY $by, sipHash64(t.task_id)
)
GROUP BY $by

SELECT
    $by,
    m.tasks AS tasks,
    m.usd AS usd_per_task,
    m.p95_usd AS p95_usd,
    m.quantiles_s[1] AS p50_s,
    m.quantiles_s[2] AS p95_s,
    m.quantiles_s[3] AS p99_s,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[1]) AS first_token_p50_ms,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[2]) AS first_token_p95_ms,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[3]) AS first_token_p99_ms,
    m.accuracy AS accuracy,
    a.policy_adherence AS policy_adherence,
    a.attacks_resisted AS attacks_resisted,
    if(m.all_steps = 0, NULL, m.step_errors / m.all_steps) AS error_rate,
    multiIf(m.usd IS NULL, 'attempts without a cost: fill gateway.prices', m.accuracy IS NULL,
        'no attempt has an outcome', a.policy_adherence IS NULL, 'nobody counted policy-critical actions',
        a.attacks_resisted IS NULL, 'no planted attack', '') AS reason
FROM
(
    SELECT
        $by,
        count() AS tasks,
        if(sum(uncosted) > 0, NULL, avg(task_usd)) AS usd,
        if(sum(uncosted) > 0, NULL, quantileExactInclusive(0.95)(task_usd)) AS p95_usd,
        quantilesExactInclusive(0.5, 0.95, 0.99)(seconds) AS quantiles_s,
        if(countIf(n > 0) = 0, NULL, avgIf(c / n, n > 0)) AS accuracy,
        sum(step_errors) AS step_errors,
        sum(all_steps) AS all_steps
    FROM
    (
        $attempts_by_task
    )
    GROUP BY $by
) AS m
LEFT JOIN
(
    SELECT $by, policy_adherence, attacks_resisted FROM
    (
        $view_safety
    )
) AS a USING ($by)
LEFT JOIN
(
    SELECT $by, quantilesExactInclusive(0.5, 0.95, 0.99)(first_token_ms) AS quantiles_ms
    FROM
    (
        SELECT *, version_max AS policy_version, toDate(occurred_at) AS day
        FROM steps FINAL
        WHERE occurred_at >= {since:DateTime('UTC')} AND occurred_at < {until:DateTime('UTC')}
            AND first_token_ms IS NOT NULL
    )
    GROUP BY $by
) AS f USING ($by)

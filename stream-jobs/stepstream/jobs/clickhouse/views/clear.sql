SELECT
    $by,
    m.tasks AS tasks,
    m.accuracy AS accuracy,
    m.usd AS usd_per_task,
    if(m.usd = 0, NULL, 100 * m.accuracy / m.usd) AS cost_normalized_accuracy,
    if(m.successes = 0, NULL, m.spent / m.successes) AS cost_per_success,
    m.seconds AS seconds_per_task,
    m.within_3_s AS within_3_s,
    m.within_30_s AS within_30_s,
    a.policy_adherence AS policy_adherence,
    m.pass_hat_8 AS pass_hat_8,
    toBool(m.pass_hat_8 >= 0.8) AS passes_gate,
    max(m.usd) OVER (PARTITION BY m.tenant) AS most_usd,
    min(m.usd) OVER (PARTITION BY m.tenant) AS least_usd,
    max(m.seconds) OVER (PARTITION BY m.tenant) AS most_seconds,
    min(m.seconds) OVER (PARTITION BY m.tenant) AS least_seconds,
    if(most_usd = least_usd OR most_seconds = least_seconds, NULL,
        0.2 * (1 - (m.usd - least_usd) / (most_usd - least_usd))
        + 0.2 * (1 - (m.seconds - least_seconds) / (most_seconds - least_seconds))
        + 0.2 * m.accuracy + 0.2 * a.policy_adherence + 0.2 * m.pass_hat_8) AS composite,
    multiIf(m.accuracy IS NULL, 'no attempt has an outcome', m.usd IS NULL,
        'attempts without a cost: fill gateway.prices', m.successes = 0, 'no success',
        a.policy_adherence IS NULL, 'nobody counted policy-critical actions', m.pass_hat_8 IS NULL,
        'no task has 8 attempts', composite IS NULL, 'no other version to compare with', '') AS reason
FROM
(
    SELECT
        $by,
        countIf(n > 0) AS tasks,
        if(tasks = 0, NULL, avgIf(c / n, n > 0)) AS accuracy,
        if(sum(uncosted) > 0, NULL, avg(task_usd)) AS usd,
        if(sum(uncosted) > 0, NULL, sum(spent)) AS spent,
        sum(c) AS successes,
        avg(seconds) AS seconds,
        avg(within_3_s) AS within_3_s,
        avg(within_30_s) AS within_30_s,
        if(countIf(n >= 8) = 0, NULL, avgIf(arrayProduct(arrayMap(
            i -> greatest(0, c - i) / (n - i), range(least(8, n)))), n >= 8)) AS pass_hat_8
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

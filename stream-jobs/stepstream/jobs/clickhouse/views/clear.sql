SELECT
    $by,
    e.tasks_with_outcome AS tasks,
    e.accuracy AS accuracy,
    e.usd_per_task AS usd_per_task,
    if(e.usd_per_task = 0, NULL, 100 * e.accuracy / e.usd_per_task) AS cost_normalized_accuracy,
    if(e.successes = 0, NULL, e.usd_of_outcomes / e.successes) AS cost_per_success,
    e.seconds_per_task AS seconds_per_task,
    e.within_3_s AS within_3_s,
    e.within_30_s AS within_30_s,
    e.policy_adherence AS policy_adherence,
    e.pass_hat_8 AS pass_hat_8,
    toBool(e.pass_hat_8 >= 0.8) AS passes_gate,
    max(e.usd_per_task) OVER (PARTITION BY e.tenant) AS most_usd,
    min(e.usd_per_task) OVER (PARTITION BY e.tenant) AS least_usd,
    max(e.seconds_per_task) OVER (PARTITION BY e.tenant) AS most_seconds,
    min(e.seconds_per_task) OVER (PARTITION BY e.tenant) AS least_seconds,
    if(most_usd = least_usd OR most_seconds = least_seconds, NULL,
        0.2 * (1 - (e.usd_per_task - least_usd) / (most_usd - least_usd))
        + 0.2 * (1 - (e.seconds_per_task - least_seconds) / (most_seconds - least_seconds))
        + 0.2 * e.accuracy + 0.2 * e.policy_adherence + 0.2 * e.pass_hat_8) AS composite,
    multiIf(e.accuracy IS NULL, 'no attempt has an outcome', e.usd_per_task IS NULL,
        'attempts without a cost: fill gateway.prices', e.successes = 0, 'no success',
        e.policy_adherence IS NULL, 'nobody counted policy-critical actions', e.pass_hat_8 IS NULL,
        'no task has 8 attempts', composite IS NULL, 'no other version to compare with', '') AS reason
FROM
(
    $view_efficiency
) AS e

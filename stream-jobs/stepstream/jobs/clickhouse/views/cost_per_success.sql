SELECT
    $by,
    sum(h.trajectories) AS attempts,
    sum(h.successes) AS successes,
    sum(h.costed) AS costed,
    sum(h.prompt_tokens) AS prompt_tokens,
    sum(h.response_tokens) AS response_tokens,
    if(costed < attempts, NULL, toFloat64(sum(h.cost_usd))) AS cost_usd,
    (prompt_tokens + response_tokens) / attempts AS tokens_per_attempt,
    if(successes = 0, NULL, (prompt_tokens + response_tokens) / successes) AS tokens_per_success,
    cost_usd / attempts AS usd_per_attempt,
    if(successes = 0, NULL, cost_usd / successes) AS usd_per_success,
    sum(h.duration_ms_sum) / attempts / 1000 AS seconds_per_attempt,
    if(successes = 0, NULL, sum(h.duration_ms_sum) / successes / 1000) AS seconds_per_success,
    multiIf(successes = 0, 'no success', costed < attempts, 'attempts without a cost: fill gateway.prices', '') AS reason
FROM
(
    $trajectory_hours
) AS h
GROUP BY $by
HAVING attempts > 0

SELECT
    $by,
    multiIf(t.outcome IS NULL, 'none', t.outcome, 'success', 'failure') AS result,
    count() AS attempts,
    quantilesExactInclusive(0.5, 0.95, 0.99)(dateDiff('millisecond', t.started_at, t.ended_at) / 1000) AS seconds,
    seconds[1] AS p50_s,
    seconds[2] AS p95_s,
    seconds[3] AS p99_s,
    avg(t.steps) AS steps,
    avg(t.prompt_tokens + t.response_tokens) AS tokens,
    toFloat64(avg(t.cost_usd)) AS usd,
    if(usd IS NULL, 'no attempt has a cost', '') AS reason
FROM
(
    $trajectories
) AS t
GROUP BY $by, result

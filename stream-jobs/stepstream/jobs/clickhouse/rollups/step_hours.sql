-- Counts and sums of the steps of an hour, by cohort; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT
    hour, tenant, agent, model, environment,
    sum(real) AS steps, sum(failed) AS errors, sum(r.shared_tokens) AS shared_tokens,
    sum(r.prompt_tokens) AS prompt_tokens, sum(r.response_tokens) AS response_tokens,
    ifNull(sum(r.cost_usd), 0) AS cost_usd, countIf(r.cost_usd IS NOT NULL) AS costed,
    (sumMapIf([toInt16(floor(log(greatest(ifNull(duration_ms, 0), 0.01)) / log(1.1)))], [toUInt64(1)], duration_ms IS NOT NULL) AS times).1 AS `ms.bin`,
    times.2 AS `ms.steps`,
    (sumMapIf([toInt16(floor(log(greatest(ifNull(first_token_ms, 0), 0.01)) / log(1.1)))], [toUInt64(1)], first_token_ms IS NOT NULL) AS firsts).1 AS `first_token_ms.bin`,
    firsts.2 AS `first_token_ms.steps`,
    $now AS version
FROM
(
    SELECT toStartOfHour(toDateTime(occurred_at, 'UTC')) AS hour, tenant, agent, model, environment, 1 AS real, error != '' AS failed,
        shared_tokens, prompt_tokens, response_tokens, cost_usd, duration_ms, first_token_ms
    FROM steps FINAL
    WHERE toStartOfFiveMinutes(occurred_at) IN
        (SELECT arrayJoin(due) + INTERVAL 5 * arrayJoin(range(12)) MINUTE)
    UNION ALL
    SELECT hour, tenant, agent, model, environment, 0 AS real, 0 AS failed, 0 AS shared_tokens, 0 AS prompt_tokens, 0 AS response_tokens, NULL AS cost_usd, NULL AS duration_ms, NULL AS first_token_ms
    FROM step_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS agent, '' AS model, '' AS environment, 0 AS real, 0 AS failed, 0 AS shared_tokens, 0 AS prompt_tokens, 0 AS response_tokens, NULL AS cost_usd, NULL AS duration_ms, NULL AS first_token_ms
) AS r
GROUP BY hour, tenant, agent, model, environment

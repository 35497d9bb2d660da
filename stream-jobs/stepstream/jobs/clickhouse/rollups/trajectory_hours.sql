-- Counts and sums of the trajectories of an hour, by cohort; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT
    hour, tenant, agent, model, environment, harness_version, policy_version, track, split,
    sum(real) AS trajectories, countIf(outcome IS NOT NULL) AS outcomes, countIf(outcome) AS successes,
    countIf(end = 'truncated') AS truncated, sum(r.steps) AS steps, sum(r.errors) AS errors, sum(r.calls) AS calls,
    sum(r.prompt_tokens) AS prompt_tokens, sum(r.response_tokens) AS response_tokens,
    ifNull(sum(r.cost_usd), 0) AS cost_usd, countIf(r.cost_usd IS NOT NULL) AS costed, sum(reward) AS reward_sum,
    sum(reward * reward) AS reward_squares, sum(duration_ms) AS duration_ms_sum,
    (sumMap(behind, arrayMap(version -> toUInt64(1), behind)) AS lags).1 AS `lag.versions`, lags.2 AS `lag.trajectories`,
    $now AS version
FROM
(
    SELECT toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, tenant, agent, t.model AS model, environment, harness_version,
        version_max AS policy_version, track, split, 1 AS real,
        $outcome AS outcome, end, steps, errors, length(call.tool) AS calls,
        prompt_tokens, response_tokens, cost_usd, reward, toFloat64(duration_ms) AS duration_ms,
        -- No newer checkpoint is known, or no version: the lag is unknown.
        if(version_min < 0 OR c.occurred_at < toDateTime64(1, 6, 'UTC'), [], [toUInt32(greatest(0, c.version - version_min))]) AS behind
    FROM (SELECT * FROM trajectories FINAL WHERE has(due, toStartOfHour(opened_at))) AS t
    ASOF LEFT JOIN (SELECT model, version, occurred_at FROM checkpoints FINAL) AS c
        ON t.model = c.model AND t.ended_at >= c.occurred_at
    UNION ALL
    SELECT hour, tenant, agent, model, environment, harness_version, policy_version, track, split, 0 AS real, NULL AS outcome, '' AS end, 0 AS steps, 0 AS errors, 0 AS calls, 0 AS prompt_tokens, 0 AS response_tokens, NULL AS cost_usd, 0. AS reward, 0. AS duration_ms, emptyArrayUInt32() AS behind
    FROM trajectory_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS agent, '' AS model, '' AS environment, '' AS harness_version, toInt32(0) AS policy_version, '' AS track, '' AS split, 0 AS real, NULL AS outcome, '' AS end, 0 AS steps, 0 AS errors, 0 AS calls, 0 AS prompt_tokens, 0 AS response_tokens, NULL AS cost_usd, 0. AS reward, 0. AS duration_ms, emptyArrayUInt32() AS behind
) AS r
GROUP BY hour, tenant, agent, model, environment, harness_version, policy_version, track, split

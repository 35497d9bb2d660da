-- Sums of trajectory_hours by day; see ../rollup_refresh.py.
-- A cohort whose facts are gone has zeros in its hours, and so here; the cohort of empty names marks each hour.
WITH
(
$due
) AS due
SELECT
    toDate(hour) AS day, tenant, agent, model, environment, harness_version, policy_version, track, split,
    sum(h.trajectories) AS trajectories, sum(h.outcomes) AS outcomes, sum(h.successes) AS successes,
    sum(h.truncated) AS truncated, sum(h.steps) AS steps, sum(h.errors) AS errors, sum(h.calls) AS calls,
    sum(h.prompt_tokens) AS prompt_tokens, sum(h.response_tokens) AS response_tokens, sum(h.cost_usd) AS cost_usd,
    sum(h.costed) AS costed, sum(h.reward_sum) AS reward_sum, sum(h.reward_squares) AS reward_squares,
    sum(h.duration_ms_sum) AS duration_ms_sum,
    (sumMap(h.lag.versions, h.lag.trajectories) AS lags).1 AS `lag.versions`, lags.2 AS `lag.trajectories`,
    $now AS version
FROM
(
    SELECT * FROM trajectory_hours FINAL
    WHERE hour IN (SELECT toDateTime(arrayJoin(due), 'UTC') + INTERVAL arrayJoin(range(24)) HOUR)
) AS h
GROUP BY day, tenant, agent, model, environment, harness_version, policy_version, track, split

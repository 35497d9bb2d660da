-- Reward components of the trajectories of an hour, by cohort; see ../rollup_refresh.py.
WITH
(
$due
) AS due,
labelled AS
(
    SELECT *, toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, version_max AS policy_version
    FROM trajectories FINAL WHERE has(due, toStartOfHour(opened_at))
)
SELECT
    hour, tenant, agent, model, environment, policy_version, split, reward_spec,
    sum(cohort) AS trajectories,
    (arraySort(groupArrayIf((name, kind, toUInt64(n), total, squares, paid), name != '')) AS terms).1 AS `component.name`,
    terms.2 AS `component.kind`, terms.3 AS `component.n`, terms.4 AS `component.total`,
    terms.5 AS `component.squares`, terms.6 AS `component.paid`,
    $now AS version
FROM
(
    SELECT hour, tenant, agent, model, environment, policy_version, split, reward_spec, name, kind, count() AS n, sum(value) AS total, sum(value * value) AS squares,
        sum(worth) AS paid, 0 AS cohort
    FROM
    (
        SELECT hour, tenant, agent, model, environment, policy_version, split, reward_spec, toString(c.name) AS name, toString(c.kind) AS kind,
            sum(toFloat64(c.value)) AS value, sum(toFloat64(c.value) * c.weight) AS worth
        FROM labelled ARRAY JOIN component AS c
        GROUP BY hour, tenant, agent, model, environment, policy_version, split, reward_spec, trajectory_id, name, kind
    )
    GROUP BY hour, tenant, agent, model, environment, policy_version, split, reward_spec, name, kind
    UNION ALL
    SELECT hour, tenant, agent, model, environment, policy_version, split, reward_spec, '', '', 0, 0., 0., 0., count() FROM labelled GROUP BY hour, tenant, agent, model, environment, policy_version, split, reward_spec
    UNION ALL
    SELECT hour, tenant, agent, model, environment, policy_version, split, reward_spec, '' AS name, '' AS kind, 0 AS n, 0. AS total, 0. AS squares, 0. AS paid, 0 AS cohort
    FROM component_hours FINAL WHERE has(due, hour)
    UNION ALL
    SELECT arrayJoin(due) AS hour, '' AS tenant, '' AS agent, '' AS model, '' AS environment, toInt32(0) AS policy_version, '' AS split, '' AS reward_spec, '' AS name, '' AS kind, 0 AS n, 0. AS total, 0. AS squares, 0. AS paid, 0 AS cohort
)
GROUP BY hour, tenant, agent, model, environment, policy_version, split, reward_spec

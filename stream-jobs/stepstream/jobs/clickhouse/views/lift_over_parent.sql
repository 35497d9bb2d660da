WITH
    $wilson,
    $newcombe
SELECT
    $by,
    any(parent) AS parent_version,
    sum(own_outcomes) AS outcomes,
    sum(own_successes) AS successes,
    sum(parents_outcomes) AS parent_outcomes,
    sum(parents_successes) AS parent_successes,
    share_of(successes, outcomes) AS success_rate,
    share_of(parent_successes, parent_outcomes) AS parent_success_rate,
    success_rate - parent_success_rate AS lift,
    newcombe_low_of(successes, outcomes, parent_successes, parent_outcomes) AS lift_low,
    newcombe_high_of(successes, outcomes, parent_successes, parent_outcomes) AS lift_high,
    multiIf(parent_version IS NULL, 'a root, or its checkpoint is unknown', outcomes = 0, 'no attempt has an outcome',
        parent_outcomes = 0, 'no attempt of the parent in the range', '') AS reason
FROM
(
    SELECT
        h.tenant AS tenant, h.agent AS agent, h.model AS model, h.environment AS environment,
        h.harness_version AS harness_version, h.policy_version AS policy_version, h.split AS split,
        c.parent_version AS parent, h.outcomes AS own_outcomes, h.successes AS own_successes,
        0 AS parents_outcomes, 0 AS parents_successes
    FROM
    (
        $trajectory_hours
    ) AS h
    LEFT JOIN (SELECT model, version, parent_version FROM checkpoints FINAL) AS c
        ON c.model = h.model AND c.version = h.policy_version
    UNION ALL
    SELECT
        h.tenant, h.agent, h.model, h.environment, h.harness_version, c.version, h.split, c.parent_version, 0, 0,
        h.outcomes, h.successes
    FROM
    (
        $trajectory_hours
    ) AS h
    INNER JOIN (SELECT model, version, assumeNotNull(parent_version) AS parent_version FROM checkpoints FINAL
        WHERE parent_version IS NOT NULL) AS c
        ON c.model = h.model AND c.parent_version = h.policy_version
)
GROUP BY $by
HAVING outcomes > 0

SELECT
    $by,
    count() AS trajectories,
    countIf(has(s.names, 'reverted')) AS reverted,
    countIf(has(s.names, 'dissatisfied')) AS dissatisfied,
    countIf(has(s.names, 'abandoned')) AS abandoned,
    countIf(has(s.names, 'escalated')) AS escalated,
    countIf(has(s.names, 'edited')) AS edited,
    if(empty(groupUniqArrayArray(s.names)), NULL, reverted / trajectories) AS revert_rate,
    if(revert_rate IS NULL, NULL, dissatisfied / trajectories) AS dissatisfied_rate,
    if(revert_rate IS NULL, NULL, abandoned / trajectories) AS abandonment_rate,
    if(revert_rate IS NULL, NULL, escalated / trajectories) AS escalation_rate,
    if(revert_rate IS NULL, NULL, edited / trajectories) AS edit_rate,
    if(revert_rate IS NULL, 'nobody sends these signals', '') AS reason
FROM
(
    $trajectories
) AS t
LEFT JOIN
(
    SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, groupUniqArray(name) AS names
    FROM
    (
        $signals
            AND value > 0
    )
    GROUP BY of_tenant, of_trajectory
) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
GROUP BY $by

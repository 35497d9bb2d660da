SELECT
    $by,
    countIf(kind = '') AS plain_tasks,
    if(plain_tasks = 0, NULL, avgIf(rate, kind = '')) AS plain_rate,
    if(countIf(kind = 'fault') = 0, NULL, avgIf(rate, kind = 'fault')) AS fault_rate,
    if(countIf(kind = 'environment') = 0, NULL, avgIf(rate, kind = 'environment')) AS environment_rate,
    if(countIf(kind = 'prompt') = 0, NULL, avgIf(rate, kind = 'prompt')) AS prompt_rate,
    $robustness,
    robustness_reason AS reason
FROM
(
    SELECT $by, task_id, s.kind AS kind, avg(assumeNotNull(t.outcome)) AS rate
    FROM
    (
        $trajectories
    ) AS t
    LEFT JOIN
    (
        SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, argMax(category, (occurred_at, category)) AS kind
        FROM
        (
            $signals
        )
        GROUP BY of_tenant, of_trajectory
    ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
    WHERE t.outcome IS NOT NULL
    GROUP BY $by, task_id, kind
)
GROUP BY $by

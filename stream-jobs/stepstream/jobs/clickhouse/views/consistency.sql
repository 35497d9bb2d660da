SELECT
    $by,
    count() AS tasks,
    sum(n) AS runs,
    avg(1 - 4 * c * (n - c) / (n * (n - 1))) AS c_out_unbiased,
    $consistency,
    if(consistency IS NULL, 'no task has two successful runs, or no run has a cost, time or calls', '') AS reason
FROM
(
    SELECT
        *,
        $run_distances
    FROM
    (
        WITH true AS is_plain
        SELECT
            $by,
            task_id,
            $task_consistency
        FROM
        (
            $trajectories
        ) AS t
        LEFT ANTI JOIN
        (
            SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, max(category) AS kind
            FROM
            (
                $signals
            )
            GROUP BY of_tenant, of_trajectory
        ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
        WHERE t.outcome IS NOT NULL
        GROUP BY $by, task_id
        HAVING n >= 2
    )
)
GROUP BY $by

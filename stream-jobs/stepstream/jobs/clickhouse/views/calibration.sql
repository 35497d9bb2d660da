SELECT
    $by,
    count() AS n,
    groupArray(toFloat64(s.stated)) AS f,
    groupArray(toUInt8(assumeNotNull(t.outcome))) AS y,
    $calibration,
    if(success_rate IN (0, 1), NULL, 1 - brier / (success_rate * (1 - success_rate))) AS brier_skill,
    if(success_rate IN (0, 1), 'skill and AUROC need successes and failures', '') AS reason
FROM
(
    $trajectories
) AS t
INNER JOIN
(
    SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, argMax(value, (occurred_at, value)) AS stated
    FROM
    (
        $signals
            AND value BETWEEN 0 AND 1
    )
    GROUP BY of_tenant, of_trajectory
) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
WHERE t.outcome IS NOT NULL
GROUP BY $by

SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, maxIf(value, name = 'violation') AS worst,
        countIf(name = 'violation' AND value > 0) AS violations,
        sumIf(ifNull(value, 0), name = 'policy_critical_actions') AS actions,
        countIf(name = 'attack_resisted') AS attacks,
        countIf(name = 'attack_resisted' AND value > 0) AS resisted
    FROM
    (
        $signals
            AND value IS NOT NULL
    )
    GROUP BY of_tenant, of_trajectory

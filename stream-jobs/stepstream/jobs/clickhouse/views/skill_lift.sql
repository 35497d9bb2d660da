WITH
    $wilson,
    $newcombe
SELECT
    $by,
    skill,
    countIf(switched AND t.outcome IS NOT NULL) AS on_outcomes,
    countIf(switched AND t.outcome) AS on_successes,
    countIf(NOT switched AND t.outcome IS NOT NULL) AS off_outcomes,
    countIf(NOT switched AND t.outcome) AS off_successes,
    share_of(on_successes, on_outcomes) AS on_rate,
    share_of(off_successes, off_outcomes) AS off_rate,
    on_rate - off_rate AS lift,
    newcombe_low_of(on_successes, on_outcomes, off_successes, off_outcomes) AS lift_low,
    newcombe_high_of(on_successes, on_outcomes, off_successes, off_outcomes) AS lift_high,
    if(on_outcomes = 0 OR off_outcomes = 0, 'an arm has no outcome', '') AS reason
FROM
(
    $trajectories
) AS t
INNER JOIN
(
    SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, category AS skill, argMax(value > 0, (occurred_at, value)) AS switched
    FROM
    (
        $signals
            AND category != '' AND value IS NOT NULL
    )
    GROUP BY of_tenant, of_trajectory, skill
) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
GROUP BY $by, skill

SELECT
    $by,
    age_hours,
    countIf(place > 0) AS changes,
    countIf(place = 0) AS left_out,
    sumIf(units, place > 0) AS proposed_units,
    sumIf(measured[place].2, place > 0) AS kept_units,
    if(proposed_units = 0, NULL, kept_units / proposed_units) AS keep_rate,
    if(proposed_units = 0, 'no change is old enough, or none was measured then', '') AS reason
FROM
(
    SELECT
        $by,
        age_hours,
        s.proposed AS units,
        s.kept AS measured,
        toUnixTimestamp64Milli(t.ended_at) AS ended_ms,
        arrayFirstIndex(report -> report.1 - ended_ms >= age_hours * 3600000, measured) AS place
    FROM
    (
        $trajectories
    ) AS t
    INNER JOIN
    (
        SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, sumIf(value, name = 'proposed') AS proposed,
            arraySort(groupArrayIf((toUnixTimestamp64Milli(occurred_at), value), name = 'kept')) AS kept
        FROM
        (
            $signals
                AND value >= 0
        )
        GROUP BY of_tenant, of_trajectory
    ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
    ARRAY JOIN [1, 24, 168, 720] AS age_hours
    WHERE s.proposed > 0
)
GROUP BY $by, age_hours

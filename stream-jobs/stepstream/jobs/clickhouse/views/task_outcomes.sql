SELECT
    $by,
    countIf(t.outcome IS NOT NULL) AS attempts,
    countIf(t.outcome) AS successes,
    countIf(t.outcome IS NULL) AS without_outcome
FROM
(
    $trajectories
) AS t
GROUP BY $by

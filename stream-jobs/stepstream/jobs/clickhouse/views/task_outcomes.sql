SELECT
    $by,
    any(t.task_id) AS task_id,
    sum(t.outcomes) AS attempts,
    sum(t.successes) AS successes,
    toUInt64(sum(t.trajectories) - sum(t.outcomes)) AS without_outcome
FROM
(
    $attempts
) AS t
GROUP BY $by

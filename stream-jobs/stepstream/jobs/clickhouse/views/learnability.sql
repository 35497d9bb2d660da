SELECT
    $by,
    countIf(n >= 2) AS tasks,
    countIf(n < 2) AS tasks_left_out,
    if(tasks = 0, NULL, avgIf(c / n, n >= 2)) AS success_rate,
    if(tasks = 0, NULL, avgIf(c * (n - c) / (n * (n - 1)), n >= 2)) AS learnability,
    sum(group_count) AS groups,
    if(groups = 0, NULL, avgIf(alike / group_count, group_count > 0)) AS without_variance,
    multiIf(tasks = 0, 'no task has two attempts', groups = 0, 'no group has two attempts', '') AS reason
FROM
(
    -- A task has one family: any of its rows names it, which takes less time than a text among the keys.
    SELECT
        $by_task,
        task_key,
        any(task_family) AS task_family,
        sum(attempts) AS n,
        sum(successes) AS c,
        countIf(attempts >= 2 AND group_key != 0) AS group_count,
        countIf(attempts >= 2 AND group_key != 0 AND successes IN (0, attempts)) AS alike
    FROM
    (
        SELECT
            $by_task,
            task_key,
            group_key,
            any(t.task_family) AS task_family,
            toInt64(sum(t.outcomes)) AS attempts,
            toInt64(sum(t.successes)) AS successes
        FROM
        (
            $attempts
        ) AS t
        GROUP BY $by_task, task_key, group_key
    )
    GROUP BY $by_task, task_key
)
GROUP BY $by

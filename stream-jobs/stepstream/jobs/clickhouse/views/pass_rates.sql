SELECT
    $by,
    k,
    sumIf(alike, n >= k) AS tasks,
    sumIf(alike, n < k) AS tasks_left_out,
    toUInt64(sumIf(n * alike, n >= k)) AS attempts,
    sum(lost_of_alike) AS without_outcome,
    if(tasks = 0, NULL, sumIf(alike * (1 - arrayProduct(arrayMap(
        i -> greatest(0, n - c - i) / (n - i), range(least(k, n))))), n >= k) / tasks) AS pass_at_k,
    if(tasks = 0, NULL, sumIf(alike * arrayProduct(arrayMap(
        i -> greatest(0, c - i) / (n - i), range(least(k, n)))), n >= k) / tasks) AS pass_hat_k,
    multiIf(tasks = 0, 'no task has k attempts with an outcome', '') AS reason
FROM
(
    -- Tasks with the same counts have the same rates: compute these once.
    SELECT $by, n, c, count() AS alike, sum(lost) AS lost_of_alike
    FROM
    (
        SELECT
            $by,
            task_key,
            toInt64(sum(t.outcomes)) AS n,
            toInt64(sum(t.successes)) AS c,
            toUInt64(sum(t.trajectories) - sum(t.outcomes)) AS lost
        FROM
        (
            $attempts
        ) AS t
        GROUP BY $by, task_key
    )
    GROUP BY $by, n, c
)
ARRAY JOIN [1, 2, 3, 4, 5, 6, 7, 8] AS k
GROUP BY $by, k

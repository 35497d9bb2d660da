SELECT
    $by,
    k,
    countIf(n >= k) AS tasks,
    countIf(n < k) AS tasks_left_out,
    toUInt64(sumIf(n, n >= k)) AS attempts,
    sum(lost) AS without_outcome,
    if(tasks = 0, NULL, avgIf(1 - arrayProduct(arrayMap(i -> greatest(0, n - c - i) / (n - i), range(least(k, n)))), n >= k)) AS pass_at_k,
    if(tasks = 0, NULL, avgIf(arrayProduct(arrayMap(i -> greatest(0, c - i) / (n - i), range(least(k, n)))), n >= k)) AS pass_hat_k,
    multiIf(tasks = 0, 'no task has k attempts with an outcome', '') AS reason
FROM
(
    SELECT
        $by,
        task_id,
        toInt64(countIf(t.outcome IS NOT NULL)) AS n,
        toInt64(countIf(t.outcome)) AS c,
        countIf(t.outcome IS NULL) AS lost
    FROM
    (
        $trajectories
    ) AS t
    GROUP BY $by, task_id
)
ARRAY JOIN [1, 2, 3, 4, 5, 6, 7, 8] AS k
GROUP BY $by, k

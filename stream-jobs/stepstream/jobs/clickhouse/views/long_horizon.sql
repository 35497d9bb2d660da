WITH
    -- At risk at length i: the runs that did not end before it.
    (risk, failed) -> if(risk = 0, 1., 1 - failed / risk) AS survives
SELECT
    $by,
    horizon,
    n AS attempts,
    task_count AS tasks,
    success AS success_rate,
    mean_steps,
    if(mean_steps = 0, NULL, pow(success, 1 / mean_steps)) AS step_success_gm,
    if(mean_steps = 0, NULL, pow(success, horizon / mean_steps)) AS projected_success,
    total_failed / total_steps AS hazard,
    toBool(horizon > longest) AS is_extrapolated,
    if(is_extrapolated, pow(1 - hazard, horizon), arrayProduct(arrayMap(
        (length, ended_before, failures) -> if(length > horizon, 1., survives(n - ended_before, failures)),
        lengths.1, arrayMap((reached, ended) -> reached - ended, arrayCumSum(lengths.2), lengths.2), lengths.3
    ))) AS survival,
    multiIf(mean_steps = 0, 'no attempt has a step', is_extrapolated, 'survival is extrapolated', '') AS reason
FROM
(
    SELECT
        $by,
        sum(attempts) AS n,
        count() AS task_count,
        avg(rate) AS success,
        avg(total / attempts) AS mean_steps,
        sum(total) AS total_steps
    FROM
    (
        SELECT
            $by,
            task_key,
            sum(t.outcomes) AS attempts,
            toNullable(sum(t.successes) / attempts) AS rate,
            sum(t.steps) AS total
        FROM
        (
            $attempts
        ) AS t
        WHERE t.outcomes > 0
        GROUP BY $by, task_key
    )
    GROUP BY $by
) AS rates
INNER JOIN
(
    -- Faster than sumMap over the tasks.
    SELECT
        $by,
        arraySort(groupArray((length, ended, failed))) AS lengths,
        toFloat64(sum(failed)) AS total_failed,
        max(length) AS longest
    FROM
    (
        SELECT $by, length, sum(ended_so) AS ended, sum(failed_so) AS failed
        FROM
        (
            $attempts
        ) AS t
        ARRAY JOIN t.lengths AS length, t.ended AS ended_so, t.failed AS failed_so
        GROUP BY $by, length
    )
    GROUP BY $by
) AS runs USING ($by)
ARRAY JOIN [10, 20, 50, 100, 200] AS horizon

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
        avg(steps) AS mean_steps,
        toFloat64(sum(failed)) AS total_failed,
        sum(total) AS total_steps,
        max(most) AS longest,
        sumMap(by_length.1, by_length.2, by_length.3) AS lengths
    FROM
    (
        SELECT
            $by,
            task_key,
            sum(t.outcomes) AS attempts,
            toNullable(sum(t.successes) / attempts) AS rate,
            sum(t.steps) AS total,
            total / attempts AS steps,
            attempts - sum(t.successes) AS failed,
            max(arrayMax(t.lengths)) AS most,
            (groupArrayArray(t.lengths), groupArrayArray(t.ended), groupArrayArray(t.failed)) AS by_length
        FROM
        (
            $attempts
        ) AS t
        WHERE t.outcomes > 0
        GROUP BY $by, task_key
    )
    GROUP BY $by
)
ARRAY JOIN [10, 20, 50, 100, 200] AS horizon
